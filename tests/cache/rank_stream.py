"""One rank of several: a cache driven by a fixed stream of operations. Run as a script.

Prints the victims, in order, as JSON. Decisions reach a rank some operations before the
one they name; how many differs from rank to rank.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

REQUESTS = 2000
SWITCH_EVERY = 150


def stream(seed: int):
    """(prompt, output) of each request: conversations, shared prefixes, one-shots."""
    rng = random.Random(seed)
    systems = [[rng.randrange(10**6) for _ in range(n)] for n in (70, 140, 200, 330)]
    talks: list[list[int]] = []
    for _ in range(REQUESTS):
        kind = rng.random()
        if talks and kind < 0.4:
            prompt = talks.pop(rng.randrange(len(talks)))
        elif kind < 0.8:
            prompt = list(rng.choice(systems))
        else:
            prompt = []
        prompt = prompt + [rng.randrange(10**6) for _ in range(rng.randrange(5, 90))]
        output = [rng.randrange(10**6) for _ in range(rng.randrange(2, 12))]
        if len(prompt) < 500:
            talks = [*talks[-7:], prompt + output]
        yield prompt, output


def run(seed: int, lead: int) -> list[int]:
    """Victims of the whole stream, as node ids, states and leaves alike."""
    from driver import Driver
    from harness import make_cache

    from sglang_hybrid.adapter.decisions import Decision
    from sglang_hybrid.adapter.tuning import Tuning
    from sglang_hybrid.shadow.arms import arms_for
    from sglang_hybrid.shadow.served import admission_of

    cache = make_cache({"min_gain_tokens": 16}, slots=24, tokens=3000, rows=4)
    cache.check_integrity = lambda: None  # O(tree) each; other tests have it
    arms = arms_for("auto", admission_of(cache.config, 1, 64))
    cache.tuning = Tuning(cache, arms, None)
    driver, victims = Driver(cache, chunk=64), []
    of_states, of_leaves = cache.view.state_victim, cache.view.leaf_victim

    def logged(choose):
        def wrapper():
            node = choose()
            victims.append(-1 if node is None else node.id)
            return node

        return wrapper

    cache.view.state_victim, cache.view.leaf_victim = logged(of_states), logged(of_leaves)
    # An arm of every kind comes into force, the sampled one more than once.
    choices = random.Random(seed + 1)
    order = [choices.randrange(len(arms)) for _ in range(REQUESTS // SWITCH_EVERY)]
    for number, (prompt, output) in enumerate(stream(seed), 1):
        at = number + lead
        if at % SWITCH_EVERY == 0 and at // SWITCH_EVERY <= len(order):
            cache.tuning.take(Decision(at, order[at // SWITCH_EVERY - 1], "better", ""))
        driver.serve(prompt, output)
    assert sum(cache.tuning.switches.values()) == len(order)
    return victims


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lead", type=int, required=True)
    settings = parser.parse_args()
    print(json.dumps(run(settings.seed, settings.lead)))


if __name__ == "__main__":
    main()

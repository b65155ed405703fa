"""The served cache does what the replay says, request by request and victim by victim.

Requests come one after another, in pools so small that states and KV are evicted all the
time. The last token of an output has no KV in the server, so the trace leaves it out.
"""

import random
from dataclasses import dataclass

import pytest
from driver import Driver
from harness import COSTS, make_cache

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.replay import SerialReplay, count, resident_states, victims
from sglang_hybrid.sim.trace import TraceBuilder
from sglang_hybrid.sim.union_tree import compile_trace

REQUESTS = 250
UNCHUNKED = 1 << 14


@dataclass(frozen=True)
class Case:
    """A configuration of the server and what it is called in the replay."""

    policy: str
    alpha: float | None = None
    prompt_end: str = "auto"
    chunk_boundary: str = "first_victims"
    min_gain: int = 1
    chunk: int = UNCHUNKED
    width: float = 0.25

    @property
    def config(self) -> dict:
        return {
            "policy": self.policy,
            "alpha": self.alpha,
            "prompt_end": self.prompt_end,
            "chunk_boundary": self.chunk_boundary,
            "min_gain_tokens": self.min_gain,
            "bucket_width": self.width,
            "ghost_forks": False,  # the server knows them by pages only
        }

    @property
    def spec(self) -> PolicySpec:
        return PolicySpec(self.policy, alpha=self.alpha or 0.0, bucket_width=self.width)

    @property
    def admission(self) -> Admission:
        return Admission(
            branch=1,
            branch_full=True,
            decode_end=1,
            prompt_end=int(self.prompt_end != "never"),
            min_gain_tokens=self.min_gain,
            chunk_tokens=self.chunk if self.chunk_boundary != "never" else 0,
            first_victims=self.prompt_end != "always",
        )


def workload(seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and outputs: conversations, prompts with a shared beginning, one-shots, repeats."""
    rng = random.Random(seed)
    fresh = iter(range(10_000, 10_000_000))
    shared = [[next(fresh) for _ in range(rng.choice([40, 150, 260]))] for _ in range(4)]
    talks: list[list[int]] = []
    requests: list[tuple[list[int], list[int]]] = []
    while len(requests) < REQUESTS:
        choice = rng.random()
        new = [next(fresh) for _ in range(rng.randrange(1, 60))]
        if choice < 0.45 and talks:
            talk = talks.pop(rng.randrange(max(0, len(talks) - 6), len(talks)))
            if rng.random() < 0.2:
                talk = talk[: rng.randrange(1, len(talk) + 1)]  # edited, or regenerated
            prompt = talk + new
        elif choice < 0.75:
            # A few of few symbols, so that prompts leave a path anywhere and run on one again.
            prompt = rng.choice(shared) + [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
            prompt += new if rng.random() < 0.7 else []
        elif choice < 0.8 and requests:
            prompt = list(rng.choice(requests[-30:])[0])
        else:
            prompt = rng.choice([[], shared[0][:30]]) + new * rng.choice([1, 1, 4])
        prompt = prompt[:500]
        output = [rng.randrange(2) for _ in range(rng.choice([1, 2, 5, 30]))]
        if rng.random() < 0.9:
            talks.append(prompt + output)
        requests.append((prompt, output))
    return requests


def serve(case: Case, requests, slots: int, tokens: int):
    """The requests on a real cache; its hits, its victims as `victims` tells them, and itself."""
    cache = make_cache(case.config, slots=slots, tokens=tokens, rows=2)
    driver, gone = Driver(cache, chunk=case.chunk), []
    view, detach = cache.view, cache.view.detach

    def logged(node):
        checkpoint = view.checkpoints.get(node.id)
        if checkpoint is not None:
            # The first request comes at clock 0 of the replay, at 1 of the view.
            gone.append((view.clock - 1, checkpoint.depth, not view.tree.live_children(node)))
        detach(node)

    view.detach = logged
    check_integrity, cache.check_integrity = cache.check_integrity, lambda: None  # seldom enough
    hits = []
    for i, (prompt, output) in enumerate(requests):
        hits.append(driver.serve(prompt, output))
        if i % 50 == 0:
            check_integrity()
    return hits, gone, cache


def replay(case: Case, requests, slots: int, tokens: int) -> SerialReplay:
    builder = TraceBuilder("served", tokens_per_symbol=1)
    for prompt, output in requests:
        builder.add([*prompt, *output[:-1]], len(prompt), len(output) - 1)
    tree = compile_trace(builder.build())
    budget = Budget(float("inf"), state_slots=slots, kv_tokens=tokens)
    run = SerialReplay(tree, COSTS, case.spec, case.admission, budget, log_victims=True)
    run.advance(len(requests))
    return run


def check(case: Case, seed: int, slots: int, tokens: int):
    requests = workload(seed)
    hits, gone, cache = serve(case, requests, slots, tokens)
    run = replay(case, requests, slots, tokens)
    expected = victims(run.cache)
    common = next(
        (i for i, pair in enumerate(zip(gone, expected, strict=False)) if pair[0] != pair[1]), None
    )
    if common is not None:
        around = slice(max(0, common - 3), common + 4)
        assert gone[around] == expected[around], "the first victim that differs"
    assert hits == run.served.hits.tolist()
    assert gone == expected
    assert cache.full_evictable_size() == count(run.cache, "KV")
    depths = sorted(checkpoint.depth for checkpoint in cache.view.checkpoints.values())
    assert depths == resident_states(run.cache)
    return cache, run


POLICIES = [
    ("lru", None),
    ("utility", 0.5),
    ("utility", 2.0),
    ("marconi", 0.0),
    ("marconi", 0.3),
    ("marconi", 3.0),
    ("density", None),
]
ADMISSIONS = {
    "chunks": {"chunk": 100},
    "whole prompts": {},
    "chunks, min gain": {"chunk": 64, "min_gain": 128},
    "no first victims": {"chunk": 64, "prompt_end": "never", "chunk_boundary": "never"},
    "no chunk ends, min gain": {"chunk": 90, "chunk_boundary": "never", "min_gain": 128},
    "chunk ends only": {"chunk": 50, "prompt_end": "never"},
    "prompt ends always": {"chunk": 80, "prompt_end": "always", "chunk_boundary": "never"},
}


@pytest.mark.parametrize(
    ("slots", "tokens", "width"), [(8, 1500, 0.25), (14, 1000, 0.25), (14, 1000, 0.0)]
)
@pytest.mark.parametrize(("policy", "alpha"), POLICIES)
def test_every_policy(policy, alpha, slots, tokens, width):
    case = Case(policy, alpha, chunk=100, width=width)
    cache, run = check(case, seed=slots, slots=slots, tokens=tokens)
    assert sum(run.served.hits > 0) > REQUESTS / 10
    assert cache.counters.evicted_leaves > REQUESTS / 10
    assert cache.counters.evicted_states > REQUESTS / 2


@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize(
    ("policy", "alpha"), [("utility", 0.5), ("marconi", 1.0), ("density", None)]
)
def test_every_admission(policy, alpha, admission):
    case = Case(policy, alpha, **ADMISSIONS[admission])
    cache, _ = check(case, seed=3, slots=10, tokens=1200)
    assert cache.counters.evicted_states > REQUESTS / 4


def test_pools_of_which_one_is_ample():
    for slots, tokens in ((3, 40_000), (500, 700)):
        check(Case("utility", 0.5, chunk=100), seed=4, slots=slots, tokens=tokens)
        check(Case("density", chunk=100), seed=4, slots=slots, tokens=tokens)

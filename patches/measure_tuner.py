"""What choosing alpha saves and costs in the patched tree.

    python patches/tree.py DEST
    PYTHONPATH=DEST/python:DEST/test/registered/unit/mem_cache/state_eviction \\
        python patches/measure_tuner.py

Tokens hit, of the prompts' tokens, by fixed policies and by ones that the tuner chooses, over
workloads made to ask for different alphas; then thread times of a switch in microseconds,
median of 59. Hits are the same on every machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from sglang.srt.mem_cache.state_admission.pages import PAGE_TOKENS
from sglang.srt.mem_cache.state_eviction.config import scored_policy
from sglang.srt.mem_cache.state_eviction.replay import Replay, ServedRequest
from sglang.srt.mem_cache.state_eviction.scored_order import MOVED_PER_ADMISSION
from sglang.srt.mem_cache.state_eviction.tuner import (
    LRU,
    Arm,
    Tuner,
    TunerSettings,
    Window,
    arms_of,
)
from sglang.srt.mem_cache.state_eviction.tuner_client import WINDOW
from sglang.test.kits.unified_radix_cache.state_requests import COSTS, workload
from test_tuner import rare_prefixes, served, short_talks

SLOTS, PAGES = 12, 160
LATE = 32
"""Requests that are admitted while the tuner computes."""

PARTS = 16
FIXED = (LRU, Arm("marconi", 1.0), Arm("marconi", 8.0), Arm("utility", 0.5), Arm("utility", 2.0))
TUNED = (("marconi",), ("marconi", "utility"))
CALLS = 59


def rare() -> Iterator[ServedRequest]:
    return chain.from_iterable(map(rare_prefixes, range(PARTS)))


def talks() -> Iterator[ServedRequest]:
    return chain.from_iterable(map(short_talks, range(PARTS)))


def mix() -> Iterator[ServedRequest]:
    return (served(*request) for request in workload(9, 1920))


WORKLOADS: dict[str, Callable[[], Iterable[ServedRequest]]] = {
    "long prefixes that come back rarely": rare,
    "short talks among long one-shots": talks,
    "random mix": mix,
    "the first, the second, the first again": lambda: chain(rare(), talks(), rare()),
}


def new_cache(arm: Arm, slots: int = SLOTS, pages: int = PAGES) -> Replay:
    policy = scored_policy(arm.policy, arm.alpha)
    return Replay(policy, COSTS, 0.25, slots, pages * PAGE_TOKENS)


def hit_rate(arm: Arm, requests: list[ServedRequest], policies: tuple[str, ...] = ()) -> float:
    """Percent of the prompts' tokens; with ``policies`` the tuner chooses among them."""
    cache, tuner, due = new_cache(arm), None, {}
    if policies:
        pools = (SLOTS, PAGES * PAGE_TOKENS)
        tuner = Tuner(TunerSettings(arms_of(policies), arm, COSTS, 0.25, *pools))
    hits = 0
    for number, request in enumerate(requests):
        if number in due:
            cache.order.switch(scored_policy(*due[number]))
        hits += cache.serve(request)
        if tuner and number % WINDOW == WINDOW - 1:
            decided = tuner.observe(Window(requests[number + 1 - WINDOW : number + 1]))
            if decided is not None:
                due[number + LATE] = decided[0]
    return 100 * hits / sum(request.prompt_tokens for request in requests)


def print_hits() -> None:
    tuned = [f"{' and '.join(policies)} auto" for policies in TUNED]
    print(
        f"| workload, requests | {' | '.join([arm.name for arm in FIXED] + tuned)} | best fixed |"
    )
    for name, make in WORKLOADS.items():
        requests = list(make())
        fixed = {arm: hit_rate(arm, requests) for arm in arms_of(("marconi", "utility"))}
        found = [fixed[arm] for arm in FIXED]
        found += [hit_rate(Arm("marconi", 1.0), requests, policies) for policies in TUNED]
        row = [f"{rate:.1f} %" for rate in (*found, max(fixed.values()))]
        print(f"| {name}, {len(requests):,} | {' | '.join(row)} |", flush=True)


def switch_times(before: Arm, after: Arm, states: int) -> list[float]:
    """Victim before, victim behind the switch, the switch, an admission while states move."""
    times: list[list[float]] = [[], [], [], []]
    cache = new_cache(before, states + 10, 16 * states)
    for request in workload(3, states):
        cache.serve(served(*request))
    order = cache.order

    def timed(into: int, call: Callable, *arguments: object) -> None:
        start = time.thread_time_ns()
        call(*arguments)
        times[into].append((time.thread_time_ns() - start) / 1e3)

    order._settle()
    for _ in range(CALLS):
        timed(0, order.states.victim, order.clock + 1)
        timed(2, order.switch, scored_policy(after.policy, after.alpha))
        timed(1, order.states.victim, order.clock + 1)
        timed(3, order.on_admitted, None)
        order.switch(scored_policy(before.policy, before.alpha))
        for _ in range(-(-len(order.tree.checkpoints) // MOVED_PER_ADMISSION)):
            order.on_admitted(None)
    return [statistics.median(each) for each in times]


def print_switches() -> None:
    print("| states, switch | victim before | victim behind it | switch | admission behind it |")
    for before, after in (
        (Arm("marconi", 1.0), Arm("marconi", 4.0)),
        (Arm("utility", 0.5), Arm("marconi", 1.0)),
    ):
        for states in (1_000, 10_000):
            row = [f"{each:,.0f}" for each in switch_times(before, after, states)]
            print(f"| {states:,}, {before.name} to {after.name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    print_hits()
    print_switches()

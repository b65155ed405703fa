"""What evicting costs in the patched tree, by policy.

    python patches/tree.py DEST && PYTHONPATH=DEST/python python patches/measure.py

States of distinct sequences of 8 tokens, the Python core; thread time of one call in
microseconds, median of 59, for one state and for one token.
"""

from __future__ import annotations

import gc
import statistics
import time

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.state_eviction.costs import ModelCosts
from sglang.test.kits.unified_radix_cache.states import StateCache

CALLS = 59
COSTS = ModelCosts(kv_bytes_per_token=64, state_bytes=6400, flops_linear=1e6, flops_quadratic=1e2)
POLICIES = {
    "lru": {},
    "lfu": {"eviction_policy_config": {"order_mamba_states": True}},
    "marconi": {"state_costs": COSTS},
    "utility": {"state_costs": COSTS},
}


def measure(policy: str, states: int, what: EvictParams) -> float:
    """Microseconds per call."""
    size = {"mamba_cache_size": states + 8, "kv_size": 8 * states + 64}
    cache = StateCache(eviction_policy=policy, mamba_state_size=2, **size, **POLICIES[policy])
    for name in range(states):
        cache.insert([1000 * name + i for i in range(8)])
    times = []
    gc.disable()
    for _ in range(CALLS):
        start = time.thread_time_ns()
        cache.cache.evict(what)
        times.append(time.thread_time_ns() - start)
    gc.enable()
    return statistics.median(times) / 1e3


def main() -> None:
    torch.set_num_threads(1)
    kinds = {
        "evict(mamba_num=1)": EvictParams(num_tokens=0, mamba_num=1),
        "evict(num_tokens=1)": EvictParams(num_tokens=1),
    }
    for kind, what in kinds.items():
        print(f"| {kind}, states | {' | '.join(POLICIES)} |")
        for states in (100, 1_000, 10_000):
            row = [f"{measure(policy, states, what):,.0f}" for policy in POLICIES]
            print(f"| {states:,} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

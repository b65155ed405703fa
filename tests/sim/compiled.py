"""The compiled replay behind the interface of the reference."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import new_cache
from sglang_hybrid.sim.replay import (
    ConcurrentReplay,
    SerialReplay,
    count,
    resident_states,
    victims,
)
from sglang_hybrid.sim.union_tree import compile_trace

from .reference import PAGE
from .reference_cache import Outcome


def replay(trace, costs, policy, admission, budget, *, schedule=None, prefill_seconds=None):
    tree = compile_trace(trace, page=PAGE)
    if schedule is None:
        run = SerialReplay(tree, costs, policy, admission, budget, log_victims=True)
        run.advance(len(trace))
        ttft = []
        if prefill_seconds is not None:
            lengths = zip(trace.input_len, run.served.hits, strict=True)
            ttft = [prefill_seconds(int(tokens), int(hit)) for tokens, hit in lengths]
    else:
        cache = new_cache(tree, costs, policy, admission, budget, log_victims=True)
        fixed = prefill_seconds(0, 0)
        slope = prefill_seconds(1, 0) - fixed
        tokens = np.array([0.0, 1024.0])
        run = ConcurrentReplay(
            cache,
            trace.arrival,
            (tokens, slope * tokens, fixed, 0.0),
            schedule.max_running,
            schedule.seconds_per_output_token,
        )
        run.advance(len(trace))
        ttft = run.ttft.tolist()
    cache = run.cache
    kv, states = count(cache, "KV"), count(cache, "STATES")
    assert count(cache, "PINNED_KV") == count(cache, "PINNED_STATES") == 0
    assert count(cache, "LOCKED_KV") == 0
    assert count(cache, "RESERVED_KV") == count(cache, "RESERVED_STATES") == 0
    return Outcome(
        hits=run.served.hits.tolist(),
        matched=run.served.matched.tolist(),
        rejected=(~run.served.cached).tolist(),
        ttft=ttft,
        victims=victims(cache),
        kv_tokens=kv,
        states=resident_states(cache),
        used_bytes=costs.kv_bytes_per_token * kv + costs.state_bytes * states,
        state_evictions=count(cache, "VICTIMS"),
        kv_tokens_evicted=count(cache, "KV_EVICTED"),
        states_made=count(cache, "STATES_MADE"),
        states_used=count(cache, "STATES_USED"),
        kv_tokens_inserted=count(cache, "KV_MADE"),
        kv_tokens_used=count(cache, "KV_USED"),
    )

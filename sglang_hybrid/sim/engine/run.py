"""Loops over requests. Both return the request at which more room in the arrays is needed."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine import pools, requests
from sglang_hybrid.sim.engine.cache import NODES, STATES, VICTIMS
from sglang_hybrid.sim.engine.plan import most_positions
from sglang_hybrid.sim.engine.requests import (
    CACHED,
    HIT,
    JOB_SIZE,
    MATCHED,
    STATUS,
    WAITS,
)
from sglang_hybrid.sim.jit import compiled, internal

# Places in `clock`: start of the last request, and when the last prefill ends.
START, PREFILL_END, CLOCK_SIZE = range(3)


@internal
def _has_room(c, r):
    most = most_positions(c, r)
    if c.counts[NODES] + most + 2 > len(c.nodes) or most > len(c.plan):
        return False
    # Every state, old or new, can go once.
    return len(c.victims) == 0 or c.counts[VICTIMS] + c.counts[STATES] + most < len(c.victims)


@internal
def _begin(c, r, job, is_serial, may_wait):
    if c.rules[0].has_pools:
        return pools.begin(c, r, job, may_wait)
    return requests.begin(c, r, job, is_serial, may_wait)


@internal
def _finish(c, job, is_serial):
    if c.rules[0].has_pools:
        pools.finish(c, job)
    else:
        requests.finish(c, job, is_serial)


@compiled
def run_serial(c, start, stop, hits, matched, cached):
    """Serve requests ``start`` to ``stop`` one after another."""
    job = np.empty(JOB_SIZE, np.int64)
    for r in range(start, stop):
        if not _has_room(c, r):
            return r
        status = _begin(c, r, job, True, False)
        hits[r], matched[r], cached[r] = job[HIT], job[MATCHED], status == CACHED
        _finish(c, job, True)
    return stop


@internal
def prefill_seconds(timing, length, hit):
    """Time of the prefill, from the table of a `PrefillTime`."""
    tokens, seconds, overhead, floor = timing
    computed = _interpolated(tokens, seconds, length) - _interpolated(tokens, seconds, hit)
    return overhead + max(computed, floor)


@internal
def _interpolated(tokens, seconds, at):
    low, high = 0, len(tokens) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if tokens[middle] <= at:
            low = middle
        else:
            high = middle
    slope = (seconds[high] - seconds[low]) / (tokens[high] - tokens[low])
    return seconds[low] + slope * (at - tokens[low])


@internal
def _earliest(ends, busy):
    """The running request that ends first, of equal ends the one that began first; -1 if none."""
    best = -1
    for i in range(len(ends)):
        if busy[i] >= 0 and (
            best < 0 or ends[i] < ends[best] or (ends[i] == ends[best] and busy[i] < busy[best])
        ):
            best = i
    return best


@internal
def _release(c, jobs, ends, busy, i):
    _finish(c, jobs[i], False)
    busy[i] = -1


@compiled
def run_concurrent(
    c, start, stop, hits, matched, cached, ttft, arrival, timing, per_token, jobs, ends, busy, clock
):
    """Serve requests as they arrive; row i of ``jobs`` belongs to request ``busy[i]`` or is free.

    At ``stop`` equal to the number of requests those still running end in their order.
    """
    for r in range(start, stop):
        if not _has_room(c, r):
            return r
        arrived = clock[START] if np.isnan(arrival[r]) else arrival[r]
        now = max(clock[START], arrived)
        free = -1
        while True:
            i = _earliest(ends, busy)
            free = -1
            for k in range(len(busy)):
                if busy[k] < 0:
                    free = k
            if i >= 0 and (free < 0 or ends[i] <= now):
                now = max(now, ends[i])
                _release(c, jobs, ends, busy, i)
                continue
            job = jobs[free]
            if _begin(c, r, job, False, i >= 0) != WAITS:
                break
            now = max(now, ends[i])
        clock[START] = now
        hits[r], matched[r], cached[r] = job[HIT], job[MATCHED], job[STATUS] == CACHED
        prefill_start = max(now, clock[PREFILL_END])
        clock[PREFILL_END] = prefill_start + prefill_seconds(
            timing, c.requests[r].input_len, job[HIT]
        )
        ttft[r] = clock[PREFILL_END] - arrived
        ends[free] = clock[PREFILL_END] + c.requests[r].output_len * per_token
        busy[free] = r
    if stop == len(c.requests):
        i = _earliest(ends, busy)
        while i >= 0:
            _release(c, jobs, ends, busy, i)
            i = _earliest(ends, busy)
    return stop

"""What the arrays of a simulated cache say about themselves is true."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import AS_EVIDENCE, FIRST_STATES, KV, NODES, SLOTS, STATES
from sglang_hybrid.sim.replay import SerialReplay, count


def check_integrity(replay: SerialReplay) -> None:
    """Counts, lists and links between requests agree with a recount."""
    cache = replay.cache
    nodes = cache.nodes[: cache.counts[NODES]]
    inner = np.arange(1, len(nodes))
    resident = inner[nodes["resident"][1:]]
    parents = nodes["parent"][resident]
    assert nodes["resident"][parents].all()
    assert (nodes["depth"][nodes["parent"][1:]] < nodes["depth"][1:]).all()
    held = resident
    if cache.rules["has_pools"][0]:
        held = inner[nodes["held"][1:]]
        assert set(resident) <= set(held)
        above = nodes["parent"][held]
        assert nodes["held"][above].all()
        assert (nodes["held_children"] == np.bincount(above, minlength=len(nodes))).all()
        ends = held[(nodes["held_children"][held] == 0) & (nodes["slot"][held] < 0)]
        assert set(np.flatnonzero(nodes["indexed"] == AS_EVIDENCE)) == set(ends)
        if len(ends):
            oldest = min(ends, key=lambda n: (nodes["made"][n], nodes["depth"][n]))
            assert count(cache, "EVIDENCE") == oldest
        else:
            assert count(cache, "EVIDENCE") == -1
    assert cache.counts[KV] == (nodes["depth"][held] - nodes["depth"][nodes["parent"][held]]).sum()
    assert (nodes["children"] == np.bincount(parents, minlength=len(nodes))).all()
    for n in np.flatnonzero(nodes["children"]):
        found, child, before = [], nodes["child"][n], -1
        while child >= 0:
            assert nodes["prev"][child] == before
            found.append(child)
            before, child = child, nodes["next"][child]
        assert sorted(found) == sorted(resident[parents == n])
    states = np.flatnonzero(nodes["slot"] >= 0)
    assert cache.counts[STATES] == len(states)
    slots = cache.lists[SLOTS, : len(states)]
    assert sorted(slots) == sorted(states)
    assert (nodes["slot"][slots] == np.arange(len(states))).all()
    assert nodes["resident"][states].all()
    assert cache.counts[FIRST_STATES] == nodes["is_first"][states].sum()
    leaves = resident[nodes["children"][resident] == 0]
    assert (nodes["slot"][leaves] >= 0).all()
    assert (nodes["last_use"][states] < len(cache.requests)).all()
    made, evicted = count(cache, "KV_MADE"), count(cache, "KV_EVICTED")
    assert made - evicted == cache.counts[KV]
    for name in ("PINNED_KV", "PINNED_STATES", "RESERVED_KV", "RESERVED_STATES", "LOCKED_KV"):
        assert count(cache, name) == 0
    assert (nodes["pins"] == 0).all() and (nodes["locks"] == 0).all()

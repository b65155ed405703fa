"""Sampled hit density times FLOPs saved per byte freed; see `core.hit_density`.

After Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit
Density", NSDI 2018.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.core.hit_density import MAX_DRAWS, SAMPLES
from sglang_hybrid.sim.engine.cache import HEADS, RANDOM, SLOTS, STATES
from sglang_hybrid.sim.engine.residency import goes_first
from sglang_hybrid.sim.jit import internal


@internal
def loss(density, efficiency):
    return density * efficiency


@internal
def _draw(counts):
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = np.uint64(counts[RANDOM]) + np.uint64(0x9E3779B97F4A7C15)
    counts[RANDOM] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@internal
def sample(c, least, most, for_kv):
    """Draw candidates with ``least`` to ``most`` children into `heads`; returns how many."""
    nodes, length = c.nodes, c.counts[STATES]
    count = 0
    if length == 0:
        return count
    for _ in range(MAX_DRAWS):
        n = c.lists[
            SLOTS, ((_draw(c.counts) >> np.uint64(32)) * np.uint64(length)) >> np.uint64(32)
        ]
        node = nodes[n]
        if (
            node.pins == 0
            and least <= node.children <= most
            and not goes_first(node)
            and not (for_kv and node.locks > 0)
        ):
            c.lists[HEADS, count] = n
            count += 1
            if count == SAMPLES:
                break
    return count

"""What an offline policy knows: when a state would be used next."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.jit import internal
from sglang_hybrid.sim.union_tree import NEVER

MAX_LOOKS = 512
"""Later prompts that are looked at; a state none of them uses counts as never used."""


@internal
def next_use(c, n, now):
    """The first later request that would hit state ``n``, as the cache stands now.

    That is the first whose prompt passes ``n`` and none of the live states below it.
    """
    nodes = c.nodes
    owner = nodes[n].owner
    low, high = c.passes[owner], c.passes[owner + 1]
    end = high
    while low < high:  # the first pass later than `now`
        middle = (low + high) // 2
        if c.passes[middle] <= now:
            low = middle + 1
        else:
            high = middle
    for i in range(low, min(end, low + MAX_LOOKS)):
        request = c.passes[i]
        at = c.requests[request].prompt_node
        limit = c.requests[request].input_len - 1
        while at > 0 and (nodes[at].depth > limit or nodes[at].slot < 0):
            at = nodes[at].parent
        if at == n:
            return np.int32(request)
    return np.int32(NEVER)

"""A cache goes on with another union tree, of its latest requests and of further ones.

The new tree has all cuts that the requests it shares with the old one make there, so an
edge of the old tree is passed by these requests whole or not at all. What none of them
passes is lost with the knowledge of its tokens: KV and states are freed.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import (
    DIRTY,
    EVIDENCE,
    FIRST_BUCKETS,
    FIRST_STATES,
    KV,
    KV_EVICTED,
    NODES,
    NORMAL_BUCKETS,
    NUM_COUNTS,
    SLOTS,
    STATES,
    TLRU,
)
from sglang_hybrid.sim.engine.index import file_evidence, reindex
from sglang_hybrid.sim.engine.residency import cut, drop_stateless
from sglang_hybrid.sim.jit import compiled, internal


def most_cuts(cuts, dropped):
    """How many nodes `carry` may add to the new tree, at most.

    Args:
        cuts: nodes of the old cache that were not in its tree.
        dropped: requests; each has made up to four nodes of its tree.
    """
    return cuts + 4 * dropped


@compiled
def carry(old, new, dropped):
    """Put what is resident in ``old`` into ``new``, an empty cache with the same rules.

    Nothing may be pinned. Request i of ``new`` is request i + ``dropped`` of ``old``, so
    that clocks go back by ``dropped``. ``new`` needs room for `most_cuts` nodes; it takes
    over the table of densities by sharing it.
    """
    image = np.full(old.counts[NODES], -1, np.int32)  # in the new tree; -1: not passed
    for r in range(dropped, len(old.requests)):
        _carry_path(old, new, image, r, dropped)
    _carry_counts(old, new)
    nodes = new.nodes
    for i in range(old.counts[STATES]):  # in their order, from which density samples
        n = image[old.lists[SLOTS, i]]
        if n < 0:
            continue
        nodes[n].slot = new.counts[STATES]
        new.lists[SLOTS, new.counts[STATES]] = n
        new.counts[STATES] += 1
        new.counts[FIRST_STATES] += nodes[n].is_first
    ends = image  # no longer needed
    count = 0
    for n in range(1, new.counts[NODES]):
        if _has_kv(new, n):
            _link(new, n)
            if nodes[n].slot < 0:
                ends[count] = n
                count += 1
    new.counts[KV_EVICTED] += old.counts[KV] - new.counts[KV]
    for i in range(count):
        # A leaf now, if all that followed was lost.
        if nodes[ends[i]].resident:
            drop_stateless(new, ends[i])
    if new.rules[0].has_pools:
        for i in range(count):
            file_evidence(new, ends[i])
    reindex(new)


@internal
def _has_kv(c, n):
    """Whether the KV that leads to ``n`` is in the cache."""
    return c.nodes[n].held if c.rules[0].has_pools else c.nodes[n].resident


@internal
def _stays_node(old, o, below):
    """Whether ``o`` stays a node even where no sequence diverges or ends.

    It holds a state, or what is known of its KV is not known of that which leads to the
    next node ``below`` it.
    """
    a = old.nodes
    if not _has_kv(old, o):
        return False
    return a[o].slot >= 0 or not _has_kv(old, below) or a[o].kv_used != a[below].kv_used


@internal
def _carry_path(old, new, image, r, dropped):
    """Nodes of one request's sequence, from its end up to what earlier ones have carried."""
    a, b = old.nodes, new.nodes
    # Walks are noted where there is no KV too.
    notes_walks = old.rules[0].policy == TLRU or old.rules[0].kv_lru
    o = below = old.requests[r].end_node
    n = new.requests[r - dropped].end_node
    while o > 0 and image[o] < 0:
        # The shallowest node at or below the depth of `o` is `n`.
        carries = notes_walks or _has_kv(old, o)
        if b[n].depth > a[o].depth and _stays_node(old, o, below):
            was = b[n].resident
            b[n].resident = False  # nothing is linked yet that `cut` would have to mend
            lower, n = n, cut(new, n, a[o].depth)
            b[lower].resident = was
        if carries and b[n].depth == a[o].depth:
            _copy(old, new, o, n, dropped)
        image[o] = n
        above = a[o].parent
        while b[b[n].parent].depth > a[above].depth:  # cut into the edge by the new requests
            n = b[n].parent
            if carries:
                _copy(old, new, o, n, dropped)
                b[n].is_first = False
        o, below = above, o
        if b[b[n].parent].depth == a[o].depth:
            n = b[n].parent


@internal
def _copy(old, new, o, n, dropped):
    """All fields of ``o`` but those of the tree, of lists, and of the victim index."""
    node = new.nodes[n]
    parent, depth, fork_time, owner = node.parent, node.depth, node.fork_time, node.owner
    new.nodes[n] = old.nodes[o]
    node = new.nodes[n]
    node.parent, node.depth, node.fork_time, node.owner = parent, depth, fork_time, owner
    node.children = node.held_children = node.pins = node.locks = 0
    node.child = node.next = node.prev = node.slot = -1
    node.heap_child = node.heap_next = node.heap_prev = -1
    node.is_dirty, node.indexed = False, 0
    node.last_use -= dropped
    node.walked -= dropped
    node.made -= dropped


@internal
def _carry_counts(old, new):
    """Counts of what has happened; those of what is held are made anew."""
    count = new.counts[NODES]
    for i in range(NUM_COUNTS):
        new.counts[i] = old.counts[i]
    new.counts[NODES] = count
    new.counts[KV] = new.counts[STATES] = new.counts[FIRST_STATES] = new.counts[DIRTY] = 0
    new.counts[FIRST_BUCKETS] = new.counts[NORMAL_BUCKETS] = 0
    new.counts[EVIDENCE] = -1
    new.rules[0].inflation = old.rules[0].inflation


@internal
def _link(new, n):
    """``n``, whose KV is in the cache, becomes a child of its parent."""
    nodes = new.nodes
    p = nodes[n].parent
    new.counts[KV] += nodes[n].depth - nodes[p].depth
    nodes[p].held_children += nodes[n].held
    if not nodes[n].resident:
        return
    first = nodes[p].child
    nodes[n].next, nodes[n].prev = first, -1
    if first >= 0:
        nodes[first].prev = n
    nodes[p].child = n
    nodes[p].children += 1

"""What is resident, and the events that change a state's facts.

An event marks the states whose facts it touches; the facts are computed when the next
victim is chosen, once however many events there were.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import (
    DIRTY,
    DIRTY_LIST,
    FIRST_STATES,
    KV,
    KV_EVICTED,
    KV_MADE,
    KV_USED,
    NODES,
    OFFLINE,
    PINNED_KV,
    PINNED_STATES,
    SLOTS,
    STATES,
    STATES_MADE,
    STATES_USED,
)
from sglang_hybrid.sim.jit import internal
from sglang_hybrid.sim.union_tree import NEVER


@internal
def prefill_flops(c, depth):
    rules = c.rules[0]
    return (rules.flops_linear + rules.flops_quadratic * depth) * depth


@internal
def mark(c, n):
    """The facts of state ``n`` are to be computed anew."""
    if not c.nodes[n].is_dirty:
        c.nodes[n].is_dirty = True
        c.lists[DIRTY_LIST, c.counts[DIRTY]] = n
        c.counts[DIRTY] += 1


@internal
def goes_first(node):
    """Whether a state is a first victim as things stand; forks count as ordinary states."""
    return node.is_first and node.children <= 1


@internal
def live_ancestor(c, n):
    """The nearest node above ``n`` that holds a state, or the root."""
    above = c.nodes[n].parent
    while above > 0 and c.nodes[above].slot < 0:
        above = c.nodes[above].parent
    return above


@internal
def _state_changed(c, n):
    """A state came or went at ``n``: the nearest states below measure from elsewhere."""
    nodes = c.nodes
    at = nodes[n].child
    while at >= 0:
        if nodes[at].slot >= 0:
            mark(c, at)
        elif nodes[at].child >= 0:
            at = nodes[at].child
            continue
        while nodes[at].next < 0:
            at = nodes[at].parent
            if at == n:
                break
        if at == n:
            break
        at = nodes[at].next
    if c.rules[0].policy == OFFLINE:
        above = live_ancestor(c, n)
        if above > 0:
            mark(c, above)  # what passes `n` may or may not be its next use


@internal
def _fork_changed(c, n):
    """``n``, without a state, became or ceased to be a fork: leaves below free other bytes."""
    nodes = c.nodes
    child = nodes[n].child
    while child >= 0:
        at = child
        while nodes[at].slot < 0 and nodes[at].children == 1:
            at = nodes[at].child
        if nodes[at].slot >= 0:
            mark(c, at)
        child = nodes[child].next


@internal
def add_edge(c, n):
    """The KV between ``n`` and its parent became resident."""
    nodes = c.nodes
    p = nodes[n].parent
    tokens = nodes[n].depth - nodes[p].depth
    first = nodes[p].child
    nodes[n].next, nodes[n].prev = first, -1
    if first >= 0:
        nodes[first].prev = n
    nodes[p].child = n
    nodes[p].children += 1
    nodes[n].resident = True
    if not c.rules[0].has_pools:
        nodes[n].kv_used = False
        c.counts[KV] += tokens
        c.counts[KV_MADE] += tokens
        if nodes[n].pins > 0:
            c.counts[PINNED_KV] += tokens
    if nodes[p].slot >= 0:
        mark(c, p)
    elif nodes[p].children == 2:
        _fork_changed(c, p)


@internal
def remove_edge(c, n):
    """The KV between ``n``, a leaf that is not pinned, and its parent goes."""
    nodes = c.nodes
    p = nodes[n].parent
    before, after = nodes[n].prev, nodes[n].next
    if before >= 0:
        nodes[before].next = after
    else:
        nodes[p].child = after
    if after >= 0:
        nodes[after].prev = before
    nodes[p].children -= 1
    nodes[n].resident = False
    tokens = nodes[n].depth - nodes[p].depth
    if not c.rules[0].has_pools:
        c.counts[KV] -= tokens
        c.counts[KV_EVICTED] += tokens
    if nodes[p].slot >= 0:
        mark(c, p)
    elif nodes[p].children == 1:
        _fork_changed(c, p)


@internal
def drop_stateless(c, n):
    """Free the KV of leaf ``n`` up to the nearest state, fork or pinned node."""
    nodes = c.nodes
    while n > 0 and nodes[n].slot < 0 and nodes[n].children == 0 and nodes[n].pins == 0:
        above = nodes[n].parent
        remove_edge(c, n)
        n = above


@internal
def add_state(c, n, kind, turn, now, is_first, base):
    """``n``, resident, receives a state."""
    node = c.nodes[n]
    count = c.counts[STATES]
    node.slot = count
    c.lists[SLOTS, count] = n
    c.counts[STATES] = count + 1
    c.counts[STATES_MADE] += 1
    node.last_use, node.hits, node.kind, node.turn = now, 0, kind, turn
    node.is_first, node.base, node.next_use = is_first, base, NEVER
    node.indexed = 0
    if is_first:
        c.counts[FIRST_STATES] += 1
    if node.pins > 0:
        c.counts[PINNED_STATES] += 1
    mark(c, n)
    _state_changed(c, n)


@internal
def remove_state(c, n):
    """``n``, not pinned and out of the index, loses its state."""
    node = c.nodes[n]
    last = c.counts[STATES] - 1
    moved = c.lists[SLOTS, last]
    c.lists[SLOTS, node.slot] = moved
    c.nodes[moved].slot = node.slot
    node.slot = -1
    c.counts[STATES] = last
    if node.is_first:
        c.counts[FIRST_STATES] -= 1
        node.is_first = False
    _state_changed(c, n)


@internal
def cut(c, edge, depth):
    """A new node at ``depth`` on the edge that leads to ``edge``."""
    nodes = c.nodes
    n = c.counts[NODES]
    c.counts[NODES] = n + 1
    node, below = nodes[n], nodes[edge]
    node.parent, node.depth = below.parent, depth
    node.fork_time, node.owner = NEVER, below.owner
    node.pins, node.walked, node.longest = below.pins, below.walked, below.longest
    node.resident, node.kv_used = below.resident, below.kv_used
    node.held, node.held_children = below.held, below.held
    node.locks, node.made = below.locks, below.made
    node.slot, node.is_dirty = -1, False
    node.heap_child = node.heap_next = node.heap_prev = -1
    node.child = node.next = node.prev = -1
    node.children = 0
    if below.resident:
        node.next, node.prev = below.next, below.prev
        if node.prev >= 0:
            nodes[node.prev].next = n
        else:
            nodes[node.parent].child = n
        if node.next >= 0:
            nodes[node.next].prev = n
        below.next = below.prev = -1
        node.child, node.children = edge, 1
    below.parent = n
    return np.int32(n)


@internal
def use_path(c, n):
    """A hit at ``n``: its state and the KV above were worth keeping."""
    nodes = c.nodes
    if nodes[n].hits == 0:
        c.counts[STATES_USED] += 1
    while n > 0 and not nodes[n].kv_used:
        nodes[n].kv_used = True
        c.counts[KV_USED] += nodes[n].depth - nodes[nodes[n].parent].depth
        n = nodes[n].parent


@internal
def pin(c, n):
    """Pin the resident path of ``n``."""
    nodes = c.nodes
    while n > 0:
        node = nodes[n]
        node.pins += 1
        if node.pins == 1:
            c.counts[PINNED_KV] += node.depth - nodes[node.parent].depth
            if node.slot >= 0:
                c.counts[PINNED_STATES] += 1
        n = node.parent


@internal
def unpin(c, n):
    """Undo `pin`; states that became free again return to the index."""
    nodes = c.nodes
    while n > 0:
        node = nodes[n]
        node.pins -= 1
        if node.pins == 0:
            c.counts[PINNED_KV] -= node.depth - nodes[node.parent].depth
            if node.slot >= 0:
                c.counts[PINNED_STATES] -= 1
                if node.indexed == 0:
                    mark(c, n)
        n = node.parent

"""Victim index: a pairing heap per bucket of weight, oldest use first.

Inside a bucket the order is (last use, depth), for all time, so only the roots compete
(`core.victims` is the same index in plain Python). States join when their facts are
known and leave when they are used, change their facts, or go.
"""

from __future__ import annotations

import math

import numpy as np

from sglang_hybrid.core import scores
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.sim.engine.cache import (
    AS_EVIDENCE,
    DENSITY,
    DIRTY,
    DIRTY_LIST,
    EVIDENCE,
    FIRST,
    FIRST_BUCKETS,
    FIRST_ROOTS,
    GDSF,
    GDSF_ONE,
    HYPERBOLIC,
    KV,
    KV_EVICTED,
    LINEAR,
    LRU,
    NORMAL,
    OFFLINE,
    SEGLEN,
    SLOTS,
    STATES,
    TLRU,
    UTILITY,
)
from sglang_hybrid.sim.engine.future import next_use
from sglang_hybrid.sim.engine.residency import goes_first, live_ancestor, mark, prefill_flops
from sglang_hybrid.sim.jit import compiled, compiled_with, internal

utility_weight = compiled_with(scores.utility_weight)
efficiency_weight = compiled_with(scores.efficiency_weight)
DECODE_END, PROMPT_END = int(Kind.DECODE_END), int(Kind.PROMPT_END)


@internal
def weigh(c, n):
    """Facts and weight of state ``n``."""
    nodes = c.nodes
    node, rules = nodes[n], c.rules[0]
    live = live_ancestor(c, n)
    node.saved = prefill_flops(c, np.int64(node.depth)) - prefill_flops(
        c, np.int64(nodes[live].depth)
    )
    node.freed = rules.state_bytes
    if node.children == 0:
        above = node.parent
        while above > 0 and nodes[above].slot < 0 and nodes[above].children < 2:
            above = nodes[above].parent
        node.freed += rules.kv_bytes * (node.depth - nodes[above].depth)
    is_end = node.kind in (DECODE_END, PROMPT_END)
    superseded = is_end and node.children == 1
    policy = rules.policy
    if goes_first(node):
        node.weight = utility_weight(1.0, node.saved, node.freed, node.hits, superseded)
    elif policy == UTILITY:
        node.weight = utility_weight(rules.alpha, node.saved, node.freed, node.hits, superseded)
    elif policy in (LINEAR, HYPERBOLIC):
        node.weight = efficiency_weight(node.saved, node.freed)
    elif policy == GDSF:
        node.weight = (1 + node.hits) * node.saved / node.freed
    elif policy == GDSF_ONE:
        node.weight = (1 + node.hits) / node.freed
    elif policy == SEGLEN:
        node.weight = node.depth - nodes[live].depth
    elif policy == TLRU:
        node.weight = node.longest - nodes[live].depth
    elif policy in (DENSITY, OFFLINE):
        node.weight = node.saved / node.freed
    else:
        node.weight = 0.0


@internal
def bucket_of(c, n):
    """Bucket of ``n``'s weight."""
    rules = c.rules[0]
    if rules.policy == LRU and not goes_first(c.nodes[n]):
        return np.int64(0)
    return np.int64(math.floor(c.nodes[n].weight / rules.bucket_width))


@internal
def settle(c, now):
    """Compute the facts of all marked states and put them where they belong."""
    nodes, rules = c.nodes, c.rules[0]
    for i in range(c.counts[DIRTY]):
        n = c.lists[DIRTY_LIST, i]
        node = nodes[n]
        node.is_dirty = False
        if node.slot < 0:
            continue
        if rules.policy == OFFLINE:
            node.next_use = next_use(c, n, now)
        weigh(c, n)
        if rules.use_index:
            _place(c, n)
    c.counts[DIRTY] = 0


@internal
def _place(c, n):
    node = c.nodes[n]
    tier = FIRST if goes_first(node) else NORMAL
    is_candidate = node.pins == 0 and (tier == FIRST or node.children <= c.rules[0].max_children)
    if node.indexed:
        stays = is_candidate and node.indexed == tier + 1
        if stays and node.bucket == bucket_of(c, n):
            return
        leave_index(c, n)
    if is_candidate:
        _join(c, n, tier)


@internal
def head(c, tier, i):
    """The oldest unpinned member of the ``i``-th bucket, or -1 if that left it empty."""
    while True:
        n = c.lists[FIRST_ROOTS + tier, i]
        if c.nodes[n].pins == 0:
            return n
        if c.nodes[n].heap_child < 0:
            leave_index(c, n)
            return np.int32(-1)
        leave_index(c, n)


@internal
def touch(c, n, now, base):
    """State ``n`` is used or asked for again at ``now``."""
    node = c.nodes[n]
    if node.indexed:
        leave_index(c, n)
    node.last_use, node.base = now, base
    mark(c, n)


@compiled
def reindex(c):
    """Forget the index and mark every state: the rules have changed."""
    for tier in (FIRST, NORMAL):
        c.counts[FIRST_BUCKETS + tier] = 0
    for i in range(c.counts[STATES]):
        n = c.lists[SLOTS, i]
        c.nodes[n].indexed = 0
        mark(c, n)


@internal
def let_go(c, n):
    """Free what is held at ``n`` and above it and leads to nothing else."""
    nodes = c.nodes
    while n > 0 and nodes[n].held and nodes[n].held_children == 0:
        if nodes[n].slot >= 0 or nodes[n].locks > 0:
            return
        above = nodes[n].parent
        tokens = nodes[n].depth - nodes[above].depth
        nodes[n].held = False
        file_evidence(c, n)
        nodes[above].held_children -= 1
        c.counts[KV] -= tokens
        c.counts[KV_EVICTED] += tokens
        n = above


# ---- heaps ----


@internal
def _precedes(c, a, b):
    one, other = c.nodes[a], c.nodes[b]
    if one.last_use != other.last_use:
        return one.last_use < other.last_use
    return one.depth < other.depth


@internal
def _meld(c, a, b):
    nodes = c.nodes
    if _precedes(c, b, a):
        a, b = b, a
    first = nodes[a].heap_child
    nodes[b].heap_next, nodes[b].heap_prev = first, a
    if first >= 0:
        nodes[first].heap_prev = b
    nodes[a].heap_child = b
    return a


@internal
def _meld_children(c, n):
    """One heap of the children of ``n``, in two passes; -1 if there are none."""
    nodes = c.nodes
    at, pairs = nodes[n].heap_child, np.int32(-1)
    while at >= 0:
        other = nodes[at].heap_next
        following = np.int32(-1)
        nodes[at].heap_next = nodes[at].heap_prev = -1
        if other >= 0:
            following = nodes[other].heap_next
            nodes[other].heap_next = nodes[other].heap_prev = -1
            at = _meld(c, at, other)
        nodes[at].heap_next = pairs
        pairs = at
        at = following
    root = np.int32(-1)
    while pairs >= 0:
        following = nodes[pairs].heap_next
        nodes[pairs].heap_next = nodes[pairs].heap_prev = -1
        root = pairs if root < 0 else _meld(c, root, pairs)
        pairs = following
    return root


@internal
def _find_bucket(c, tier, key):
    for i in range(c.counts[FIRST_BUCKETS + tier]):
        if c.bucket_keys[tier, i] == key:
            return i
    return -1


@internal
def _join(c, n, tier):
    node = c.nodes[n]
    node.bucket = bucket_of(c, n)
    node.heap_child = node.heap_next = node.heap_prev = -1
    node.indexed = tier + 1
    i = _find_bucket(c, tier, node.bucket)
    if i < 0:
        i = c.counts[FIRST_BUCKETS + tier]
        c.counts[FIRST_BUCKETS + tier] = i + 1
        c.bucket_keys[tier, i] = node.bucket
        c.lists[FIRST_ROOTS + tier, i] = n
    else:
        c.lists[FIRST_ROOTS + tier, i] = _meld(c, c.lists[FIRST_ROOTS + tier, i], n)


@internal
def leave_index(c, n):
    """Take ``n`` out of its heap."""
    node = c.nodes[n]
    tier = node.indexed - 1
    i = _find_bucket(c, tier, node.bucket)
    root = _without(c, c.lists[FIRST_ROOTS + tier, i], n)
    if root < 0:
        last = c.counts[FIRST_BUCKETS + tier] - 1
        c.counts[FIRST_BUCKETS + tier] = last
        c.bucket_keys[tier, i] = c.bucket_keys[tier, last]
        c.lists[FIRST_ROOTS + tier, i] = c.lists[FIRST_ROOTS + tier, last]
    else:
        c.lists[FIRST_ROOTS + tier, i] = root
    node.indexed = 0


@internal
def _without(c, root, n):
    """Take ``n`` out of the heap of ``root``; the new root, -1 if nothing is left."""
    nodes = c.nodes
    node = nodes[n]
    if root == n:
        root = _meld_children(c, n)
    else:
        before, after = node.heap_prev, node.heap_next
        if nodes[before].heap_child == n:
            nodes[before].heap_child = after
        else:
            nodes[before].heap_next = after
        if after >= 0:
            nodes[after].heap_prev = before
        rest = _meld_children(c, n)
        if rest >= 0:
            root = _meld(c, root, rest)
    node.heap_child = node.heap_next = node.heap_prev = -1
    return root


@internal
def file_evidence(c, n):
    """Put ``n`` where it belongs: among the ends of paths that lead to no state, or not.

    They go in the order in which their KV was inserted, of equal ones the shallower first.
    """
    node = c.nodes[n]
    belongs = n > 0 and node.held and node.held_children == 0 and node.slot < 0
    belongs = belongs and node.locks == 0
    if belongs == (node.indexed == AS_EVIDENCE):
        return
    root = np.int32(c.counts[EVIDENCE])
    if belongs:
        node.last_use, node.indexed = node.made, AS_EVIDENCE
        node.heap_child = node.heap_next = node.heap_prev = -1
        c.counts[EVIDENCE] = n if root < 0 else _meld(c, root, n)
    else:
        node.indexed = 0
        c.counts[EVIDENCE] = _without(c, root, n)

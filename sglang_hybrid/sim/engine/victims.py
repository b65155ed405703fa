"""The choice of a victim: which state, or which leaf, goes next.

Each loss is one file in `sim/policies/`; here the candidates are gathered and compared.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.core import hit_density
from sglang_hybrid.core.hit_density import DENSITIES
from sglang_hybrid.sim.engine.cache import (
    DENSITY,
    FIRST,
    FIRST_BUCKETS,
    FIRST_EVICTION,
    FIRST_STATES,
    GDSF,
    GDSF_ONE,
    HEADS,
    HYPERBOLIC,
    INTERIORS_EVICTED,
    LEAVES_EVICTED,
    LINEAR,
    LRU,
    NORMAL,
    SEGLEN,
    SLOTS,
    STATES,
    TLRU,
    UTILITY,
    VICTIMS,
)
from sglang_hybrid.sim.engine.future import next_use
from sglang_hybrid.sim.engine.index import (
    bucket_of,
    file_evidence,
    head,
    leave_index,
    let_go,
    settle,
)
from sglang_hybrid.sim.engine.residency import drop_stateless, goes_first, remove_state
from sglang_hybrid.sim.jit import compiled_with, internal
from sglang_hybrid.sim.policies import density, gdsf, lru, marconi, offline, seglen, tlru, utility
from sglang_hybrid.sim.union_tree import NEVER

class_of = compiled_with(hit_density.class_of)
age_bin = compiled_with(hit_density.age_bin)
pool_of_class = compiled_with(hit_density.pool_of_class)
_fill = compiled_with(hit_density._fill)
recompute = compiled_with(hit_density.recompute, _fill=_fill, pool_of_class=pool_of_class)
count_event = compiled_with(
    hit_density.count_event, age_bin=age_bin, pool_of_class=pool_of_class, recompute=recompute
)


@internal
def density_class(c, n):
    node = c.nodes[n]
    return class_of(node.children == 0, node.hits, node.kind, node.turn)


@internal
def choose(c, now, leaf_only):
    """The next victim at ``now``, -1 if there is none."""
    settle(c, now)
    if c.counts[FIRST_STATES] > 0:
        victim = choose_first(c, now, leaf_only)
        if victim >= 0:
            return victim
    return choose_normal(c, now, leaf_only)


@internal
def choose_first(c, now, leaf_only):
    """The next of the first victims, -1 if there is none. Facts must be settled."""
    if c.counts[FIRST_STATES] == 0:
        return np.int32(-1)
    if c.rules[0].use_index and not leaf_only:
        count = _roots(c, FIRST)
    else:
        count = _scan(c, FIRST, 0, 0 if leaf_only else 1, leaf_only)
    return _lowest(c, now, count, UTILITY)


@internal
def choose_normal(c, now, leaf_only):
    """The next of the others, -1 if there is none. Facts must be settled."""
    rules = c.rules[0]
    most = np.int64(0) if leaf_only else np.int64(rules.max_children)
    count = 0
    if rules.policy == DENSITY:
        count = density.sample(c, 0, most, leaf_only)
    elif rules.use_index and not leaf_only:
        count = _roots(c, NORMAL)
    if count == 0 and (leaf_only or not rules.use_index):
        count = _scan(c, NORMAL, 0, most, leaf_only)
    if count == 0 and rules.has_pools and not leaf_only:
        # All that may go are in use: one that else may not goes after all.
        if rules.policy == DENSITY:
            count = density.sample(c, most + 1, NEVER, False)
        if count == 0:
            count = _scan(c, NORMAL, most + 1, NEVER, False)
    return _lowest(c, now, count, rules.policy)


@internal
def _roots(c, tier):
    """The oldest unpinned member of every bucket, in `heads`."""
    count = i = 0
    while i < c.counts[FIRST_BUCKETS + tier]:
        n = head(c, tier, i)
        if n < 0:
            continue  # the bucket went, another took its place
        c.lists[HEADS, count] = n
        count += 1
        i += 1
    return count


@internal
def _scan(c, tier, least, most, for_kv):
    """The compared candidates with ``least`` to ``most`` children, in `heads`, without an index."""
    nodes, rules = c.nodes, c.rules[0]
    policy = UTILITY if tier == FIRST else rules.policy
    by_bucket = policy in (UTILITY, LINEAR, HYPERBOLIC)
    by_bucket = by_bucket and rules.bucket_width > 0
    count = 0
    for i in range(c.counts[STATES]):
        n = c.lists[SLOTS, i]
        node = nodes[n]
        if node.pins > 0 or not least <= node.children <= most:
            continue
        if goes_first(node) != (tier == FIRST) or (for_kv and node.locks > 0):
            continue
        if not by_bucket:
            c.lists[HEADS, count] = n
            count += 1
            continue
        node.bucket = bucket_of(c, n)
        for k in range(count + 1):
            if k == count:
                c.lists[HEADS, count] = n
                count += 1
                break
            other = nodes[c.lists[HEADS, k]]
            if other.bucket == node.bucket:
                if (node.last_use, node.depth) < (other.last_use, other.depth):
                    c.lists[HEADS, k] = n
                break
    return count


@internal
def _lowest(c, now, count, policy):
    """The candidate in `heads` of lowest loss; ties: older last use, smaller depth."""
    if count == 0:
        return np.int32(-1)
    nodes, rules = c.nodes, c.rules[0]
    spans = marconi.spans(c, count, now, policy)
    best, lowest = np.int32(-1), np.inf
    for i in range(count):
        n = c.lists[HEADS, i]
        node = nodes[n]
        if policy == LRU:
            loss = lru.loss(node.last_use)
        elif policy == UTILITY:
            loss = utility.loss(node.weight, now - node.last_use)
        elif policy == LINEAR:
            loss = marconi.linear_loss(node.weight, node.last_use, now, spans)
        elif policy == HYPERBOLIC:
            loss = marconi.hyperbolic_loss(node.weight, node.last_use, now, spans)
        elif policy in (GDSF, GDSF_ONE):
            loss = gdsf.loss(node.base, node.weight)
        elif policy == SEGLEN:
            loss = seglen.loss(node.weight, node.last_use, spans, rules.share)
        elif policy == TLRU:
            loss = tlru.loss(node.weight, node.last_use, rules.threshold)
        elif policy == DENSITY:
            at = age_bin(now - node.last_use)
            loss = density.loss(c.table.cells[DENSITIES, density_class(c, n), at], node.weight)
        else:
            if node.next_use <= now:
                node.next_use = next_use(c, n, now)
            loss = offline.loss(node.weight, node.next_use, now)
        if best >= 0 and loss == lowest:
            other = nodes[best]
            if (node.last_use, node.depth) < (other.last_use, other.depth):
                best = n
        elif best < 0 or loss < lowest:
            best, lowest = n, loss
    if policy in (GDSF, GDSF_ONE):
        rules.inflation = lowest
    return best


@internal
def oldest_walked_leaf(c):
    """The leaf whose path was walked longest ago (KV order of SGLang), -1 if none."""
    nodes = c.nodes
    best = np.int32(-1)
    for i in range(c.counts[STATES]):
        n = c.lists[SLOTS, i]
        node = nodes[n]
        if node.pins > 0 or node.children > 0 or node.locks > 0:
            continue
        if best < 0 or (node.walked, node.depth) < (nodes[best].walked, nodes[best].depth):
            best = n
    return best


@internal
def evict(c, n, now):
    """State ``n`` goes; a leaf's KV goes with it, unless there are two pools."""
    node = c.nodes[n]
    is_leaf = node.children == 0
    if c.rules[0].has_pools:
        now -= 1  # the clock: see `pools`
    if len(c.victims):
        at = c.counts[VICTIMS]
        c.victims[at, 0], c.victims[at, 1], c.victims[at, 2] = now, node.depth, is_leaf
    c.counts[VICTIMS] += 1
    c.counts[LEAVES_EVICTED if is_leaf else INTERIORS_EVICTED] += 1
    if c.counts[FIRST_EVICTION] < 0:
        c.counts[FIRST_EVICTION] = now
    if c.rules[0].policy == DENSITY:
        count_event(c.table, density_class(c, n), max(1, now - node.last_use), False)
    if node.indexed:
        leave_index(c, n)
    remove_state(c, n)
    if is_leaf:
        drop_stateless(c, n)
    if c.rules[0].has_pools:
        file_evidence(c, n)
        if c.rules[0].kv_lru and is_leaf:
            let_go(c, n)

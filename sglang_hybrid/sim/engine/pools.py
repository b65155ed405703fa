"""The steps of one request where states and KV have pools of their own, as in the server.

docs/simulator.md, "Two pools". KV that leads to no state is *held* all the same until
its pool needs the room, as evidence for branch points; the arrays' tree of `resident`
nodes is that of the states. The clock is that of the server: it ticks when a request
is admitted, and victims are chosen at the next tick.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import (
    EVIDENCE,
    KV,
    KV_MADE,
    LOCKED_KV,
    PINNED_STATES,
    RESERVED_KV,
    RESERVED_STATES,
    STATES,
)
from sglang_hybrid.sim.engine.index import file_evidence, let_go, settle
from sglang_hybrid.sim.engine.plan import find_nodes, plan, plan_output
from sglang_hybrid.sim.engine.requests import (
    CACHED,
    HELD_KV,
    HELD_STATES,
    HIT,
    KV_END,
    MATCHED,
    REJECTED,
    REQUEST,
    STATUS,
    TAIL,
    TIP,
    WAITS,
    cap_path,
    choose_normal_if_beaten,
    is_asked_for,
    leave_state,
    renew,
    starts_first,
    use_hit,
)
from sglang_hybrid.sim.engine.residency import add_edge, mark
from sglang_hybrid.sim.engine.victims import choose, choose_first, evict, oldest_walked_leaf
from sglang_hybrid.sim.jit import internal


@internal
def begin(c, r, job, may_wait):
    """From the match of request ``r`` to the end of its prefill; fills ``job``.

    The room that its output takes is reserved; the output enters when the request ends.
    """
    nodes, counts = c.nodes, c.counts
    length = c.requests[r].input_len
    total = length + c.requests[r].output_len
    n = c.requests[r].prompt_node
    while not nodes[n].held:
        n = nodes[n].parent
    matched_node, matched = n, np.int64(nodes[n].depth)
    while n > 0 and (nodes[n].slot < 0 or nodes[n].depth > length - 1):
        n = nodes[n].parent
    hit_node, hit = n, np.int64(nodes[n].depth)
    job[REQUEST], job[HIT], job[MATCHED], job[KV_END] = r, hit, matched, total
    job[HELD_KV], job[HELD_STATES], job[TAIL], job[TIP] = 0, 0, -1, hit_node
    _lock(c, hit_node, 0)
    tokens = total - hit + counts[LOCKED_KV] + counts[RESERVED_KV]
    slots = counts[RESERVED_STATES] + 1 + (hit > 0)
    job[STATUS] = CACHED
    if tokens > c.rules[0].kv_tokens or slots > c.rules[0].state_slots:
        job[STATUS] = WAITS if may_wait else REJECTED
    if job[STATUS] == WAITS:
        _unlock(c, hit_node)
        return WAITS
    only_continues = matched < length and nodes[matched_node].held_children == 0
    count = plan(c, r, hit, matched, only_continues)
    find_nodes(c, r, count)
    if hit > 0:
        _pin(c, hit_node)
        if job[STATUS] == CACHED:
            _free_slot(c, r)
    use_hit(c, r, matched_node, hit_node)
    if job[STATUS] == CACHED:
        if hit == 0:
            _free_slot(c, r + 1)
        counts[RESERVED_STATES] += 1  # the request works on a copy
        _prefill(c, r, job, count, hit_node)
        _reserve_output(c, r, job)
    if nodes[hit_node].pins > 0:
        _unpin(c, hit_node)
    return job[STATUS]


@internal
def finish(c, job):
    """The end of a request: its output enters, and its path is free again."""
    nodes, r = c.nodes, job[REQUEST]
    if job[STATUS] == CACHED:
        count = plan_output(c, r, c.requests[r].input_len, np.int64(0))
        find_nodes(c, r, count)
        end = c.requests[r].end_node
        if c.rules[0].truncate:
            end = c.plan[count - 1].node if count > 0 else np.int32(0)
        if nodes[end].depth > nodes[job[TIP]].depth:
            _insert(c, r, job, end)
        for i in range(count):
            # The last one is the state that the request worked on.
            if i < job[HELD_STATES] or i == count - 1:
                _put_state(c, r, job, c.plan[i].node, c.plan[i].kind)
        c.counts[RESERVED_STATES] -= 1 + job[HELD_STATES]
        c.counts[RESERVED_KV] -= job[HELD_KV]
    _unlock(c, np.int32(job[TIP]))
    if c.rules[0].max_states_per_path > 0 and job[TAIL] >= 0:
        cap_path(c, r + 1, job[TAIL])


@internal
def _prefill(c, r, job, count, hit_node):
    """The prompt, up to one planned position after the other."""
    nodes, length = c.nodes, c.requests[r].input_len
    end = c.requests[r].prompt_node
    at = np.int64(job[HIT])
    for i in range(count + 1):
        n = c.plan[i].node if i < count else end
        depth = np.int64(nodes[n].depth)
        _allocate(c, r, job, depth - at)
        at = depth
        takes = i < count and _may_take(c, n, c.plan[i].kind, r)
        if takes or (depth == length and not c.rules[0].truncate):
            if nodes[n].depth > nodes[job[TIP]].depth:
                _insert(c, r, job, n)
            if takes:
                _put_state(c, r, job, n, c.plan[i].kind)
            if nodes[hit_node].pins > 0:
                _unpin(c, hit_node)


@internal
def _reserve_output(c, r, job):
    _allocate(c, r, job, c.requests[r].output_len)
    count = plan_output(c, r, c.requests[r].input_len, np.int64(0))
    for _ in range(count - 1):
        if not _has_slot(c, r):
            return
        job[HELD_STATES] += 1
        c.counts[RESERVED_STATES] += 1


@internal
def _has_slot(c, r):
    """Whether a slot is free, or could be freed."""
    if c.counts[STATES] + c.counts[RESERVED_STATES] < c.rules[0].state_slots:
        return True
    victim = choose(c, r + 1, False)
    if victim >= 0:
        evict(c, victim, r + 1)
    return victim >= 0


@internal
def _free_slot(c, now):
    """A slot for the request to work on; there is one to be had."""
    if c.counts[STATES] + c.counts[RESERVED_STATES] >= c.rules[0].state_slots:
        evict(c, choose(c, now, False), now)


@internal
def _may_take(c, n, kind, r):
    """Whether a state of ``kind`` is taken at ``n``; if so, its slot is free."""
    if is_asked_for(c, kind):
        return _has_slot(c, r)
    if c.counts[STATES] + c.counts[RESERVED_STATES] < c.rules[0].state_slots:
        return True
    settle(c, r + 1)
    victim = choose_first(c, r + 1, False)
    if victim < 0:
        victim = choose_normal_if_beaten(c, n, r + 1, r)
    if victim >= 0:
        evict(c, victim, r + 1)
    return victim >= 0


@internal
def _put_state(c, r, job, n, kind):
    nodes = c.nodes
    if nodes[n].slot >= 0:
        renew(c, n, kind, max(r, nodes[n].last_use))
        return
    at = np.int32(n)
    while not nodes[at].resident:
        add_edge(c, at)
        at = nodes[at].parent
    leave_state(c, r, job, n, kind, starts_first(c, kind))


# ---- KV ----


@internal
def _allocate(c, r, job, tokens):
    """Room in the KV pool that nobody else can take."""
    counts = c.counts
    while counts[KV] + counts[RESERVED_KV] + tokens > c.rules[0].kv_tokens:
        _evict_kv(c, r + 1)
    job[HELD_KV] += tokens
    counts[RESERVED_KV] += tokens


@internal
def _evict_kv(c, now):
    """The next victim of the KV pool goes, with all above it that leads nowhere else."""
    n = np.int32(c.counts[EVIDENCE])
    if n < 0:
        n = oldest_walked_leaf(c) if c.rules[0].kv_lru else choose(c, now, True)
        evict(c, n, now)
    let_go(c, n)


@internal
def _insert(c, r, job, end):
    """The request's KV down to ``end`` enters, and its lock moves there."""
    nodes = c.nodes
    tokens = nodes[end].depth - nodes[job[TIP]].depth
    job[HELD_KV] -= tokens
    c.counts[RESERVED_KV] -= tokens
    n = np.int32(end)
    while not nodes[n].held:
        above = nodes[n].parent
        nodes[n].held, nodes[n].kv_used, nodes[n].made = True, False, r
        nodes[above].held_children += 1
        file_evidence(c, above)
        tokens = nodes[n].depth - nodes[above].depth
        c.counts[KV] += tokens
        c.counts[KV_MADE] += tokens
        n = above
    _lock(c, end, job[TIP])
    job[TIP] = end


@internal
def _lock(c, n, above):
    """Keep the KV between ``above``, a node of its path, and ``n``."""
    nodes = c.nodes
    while n != above:
        node = nodes[n]
        node.locks += 1
        if node.locks == 1:
            c.counts[LOCKED_KV] += node.depth - nodes[node.parent].depth
            file_evidence(c, n)
        n = node.parent


@internal
def _unlock(c, n):
    """Undo `_lock` up to the root."""
    nodes = c.nodes
    while n > 0:
        node = nodes[n]
        node.locks -= 1
        if node.locks == 0:
            c.counts[LOCKED_KV] -= node.depth - nodes[node.parent].depth
            file_evidence(c, n)
        n = node.parent


# ---- the state that a request is copied from ----


@internal
def _pin(c, n):
    c.nodes[n].pins += 1
    c.counts[PINNED_STATES] += c.nodes[n].pins == 1


@internal
def _unpin(c, n):
    node = c.nodes[n]
    node.pins -= 1
    c.counts[PINNED_STATES] -= node.pins == 0
    if node.pins == 0 and node.indexed == 0:
        mark(c, n)

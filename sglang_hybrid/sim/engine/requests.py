"""The steps of one request (docs/simulator.md, "One request")."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.engine.cache import (
    DENSITY,
    FIRST_STATES,
    HEADS,
    HYPERBOLIC,
    KV,
    LINEAR,
    LRU,
    PINNED_KV,
    PINNED_STATES,
    RESERVED_KV,
    RESERVED_STATES,
    STATES,
    TLRU,
    USED_KINDS,
    UTILITY,
)
from sglang_hybrid.sim.engine.index import (
    efficiency_weight,
    settle,
    touch,
    utility_weight,
)
from sglang_hybrid.sim.engine.plan import (
    CHUNK,
    PROMPT_END,
    find_nodes,
    plan,
    plan_output,
)
from sglang_hybrid.sim.engine.residency import (
    add_edge,
    add_state,
    drop_stateless,
    live_ancestor,
    mark,
    pin,
    prefill_flops,
    unpin,
    use_path,
)
from sglang_hybrid.sim.engine.victims import (
    choose,
    choose_first,
    choose_normal,
    count_event,
    density_class,
    evict,
)
from sglang_hybrid.sim.jit import internal
from sglang_hybrid.sim.policies import lru, marconi, utility

REJECTED, CACHED, WAITS = range(3)

# What is remembered of a running request: places in its row of jobs.
REQUEST, HIT, MATCHED, KV_END, HELD_KV, HELD_STATES, TAIL, TIP, STATUS, JOB_SIZE = range(10)


@internal
def begin(c, r, job, is_serial, may_wait):
    """Steps 1-8 of request ``r``; fills ``job`` and returns its status.

    A serial request's output enters at once; otherwise its space is only reserved.
    """
    nodes = c.nodes
    length = c.requests[r].input_len
    n = c.requests[r].prompt_node
    while not nodes[n].resident:
        n = nodes[n].parent
    matched_node, matched = n, np.int64(nodes[n].depth)
    while n > 0 and (nodes[n].slot < 0 or nodes[n].depth > length - 1):
        n = nodes[n].parent
    hit_node, hit = n, np.int64(nodes[n].depth)
    n = c.requests[r].end_node
    while not nodes[n].resident:
        n = nodes[n].parent
    tip, resident = n, np.int64(nodes[n].depth)

    count = plan(c, r, hit, matched, False)
    find_nodes(c, r, count)
    kv_end = length + c.requests[r].output_len
    if c.rules[0].truncate:
        kv_end = max(resident, c.plan[count - 1].depth) if count else resident
    new_states = np.int64(0)
    for i in range(count):
        if is_asked_for(c, c.plan[i].kind) and nodes[c.plan[i].node].slot < 0:
            new_states += 1
    pin(c, tip)
    job[REQUEST], job[HIT], job[MATCHED], job[KV_END] = r, hit, matched, kv_end
    job[HELD_KV], job[HELD_STATES] = kv_end - resident, new_states
    job[TAIL], job[TIP] = -1, tip
    status = CACHED if _fits_beside_pinned(c, job) else REJECTED
    if status == REJECTED and may_wait:
        unpin(c, tip)
        job[STATUS] = WAITS
        return WAITS
    use_hit(c, r, matched_node, hit_node)
    _renew(c, r, count)
    job[STATUS] = status
    if status == REJECTED:
        job[HELD_KV] = job[HELD_STATES] = 0
        return status
    _make_space(c, r, job)
    c.counts[RESERVED_KV] += job[HELD_KV]
    c.counts[RESERVED_STATES] += job[HELD_STATES]
    _insert(c, r, job, count, kv_end if is_serial else min(kv_end, length), True)
    if c.rules[0].first_victims:
        _take_first_victims(c, r, job, count)
    return status


@internal
def finish(c, job, is_serial):
    """The end of a request: its output enters, and its path is free again."""
    r = job[REQUEST]
    tip = np.int32(job[TIP])
    unpin(c, tip)
    enters = not is_serial and job[STATUS] == CACHED
    if enters and job[KV_END] > c.requests[r].input_len:
        count = plan_output(c, r, max(job[HIT], c.requests[r].input_len), np.int64(0))
        find_nodes(c, r, count)
        end = _insert(c, r, job, count, job[KV_END], False)
        if c.nodes[end].depth > c.nodes[tip].depth:
            tip = end
    c.counts[RESERVED_KV] -= job[HELD_KV]
    c.counts[RESERVED_STATES] -= job[HELD_STATES]
    drop_stateless(c, tip)
    if c.rules[0].max_states_per_path > 0 and job[TAIL] >= 0:
        cap_path(c, r, job[TAIL])


@internal
def is_asked_for(c, kind):
    return not (c.rules[0].first_victims and (kind in (PROMPT_END, CHUNK)))


@internal
def starts_first(c, kind):
    used = (c.counts[USED_KINDS] >> kind) & 1
    return not is_asked_for(c, kind) and not used


@internal
def _fits_beside_pinned(c, job):
    rules, counts = c.rules[0], c.counts
    tokens = job[HELD_KV] + counts[PINNED_KV] + counts[RESERVED_KV]
    states = job[HELD_STATES] + counts[PINNED_STATES] + counts[RESERVED_STATES]
    return rules.kv_bytes * tokens + rules.state_bytes * states <= rules.budget


@internal
def _fits(c, tokens, states):
    """Whether so much more can be held now."""
    rules, counts = c.rules[0], c.counts
    tokens += counts[KV] + counts[RESERVED_KV]
    states += counts[STATES] + counts[RESERVED_STATES]
    return rules.kv_bytes * tokens + rules.state_bytes * states <= rules.budget


@internal
def _make_space(c, r, job):
    while not _fits(c, job[HELD_KV], job[HELD_STATES]):
        evict(c, choose(c, r, False), r)


@internal
def use_hit(c, r, matched_node, hit_node):
    """Request ``r`` was matched and starts from ``hit_node``."""
    nodes, rules = c.nodes, c.rules[0]
    base = c.rules[0].inflation
    if rules.policy == TLRU or rules.kv_lru:
        _walk(c, r)
    if hit_node > 0:
        node = nodes[hit_node]
        if rules.policy == DENSITY:
            age = max(1, r - node.last_use)
            count_event(c.table, density_class(c, hit_node), age, True)
        use_path(c, hit_node)
        touch(c, hit_node, r, base)
        node.hits += 1
        c.counts[USED_KINDS] |= np.int64(1) << node.kind
        if node.is_first:
            node.is_first = False
            c.counts[FIRST_STATES] -= 1
    if rules.refresh_path:
        n = matched_node
        while n > 0:
            if nodes[n].slot >= 0:
                touch(c, n, r, base)
            n = nodes[n].parent


@internal
def _walk(c, r):
    """Note the request on every node of its sequence."""
    nodes = c.nodes
    total = c.requests[r].input_len + c.requests[r].output_len
    n = c.requests[r].end_node
    while n > 0:
        node = nodes[n]
        node.walked = r
        if total > node.longest:
            node.longest = total
            if node.slot >= 0:
                mark(c, n)
        n = node.parent


@internal
def _renew(c, r, count):
    """Wanted positions that hold a state already."""
    for i in range(count):
        if c.nodes[c.plan[i].node].slot >= 0:
            renew(c, c.plan[i].node, c.plan[i].kind, r)


@internal
def renew(c, n, kind, now):
    """State ``n`` is wanted again, as one of ``kind``."""
    node = c.nodes[n]
    touch(c, n, now, c.rules[0].inflation)
    if node.is_first:
        node.kind = kind
        if not starts_first(c, kind):
            node.is_first = False
            c.counts[FIRST_STATES] -= 1


@internal
def leave_state(c, r, job, n, kind, is_first):
    """Request ``r`` takes a state at ``n``, perhaps the deepest of its own."""
    add_state(c, n, kind, c.requests[r].turn, r, is_first, c.rules[0].inflation)
    if job[TAIL] < 0 or c.nodes[n].depth > c.nodes[job[TAIL]].depth:
        job[TAIL] = n


@internal
def _insert(c, r, job, count, limit, pins):
    """KV and the states asked for up to depth ``limit``, out of what is held for them.

    With ``pins`` what is new is pinned with the rest of the path. Returns the deepest
    node up to ``limit``.
    """
    nodes = c.nodes
    n = c.requests[r].end_node
    while nodes[n].depth > limit:
        n = nodes[n].parent
    end = n
    if pins and not nodes[n].resident:
        job[TIP] = n
    while not nodes[n].resident:
        above = nodes[n].parent
        nodes[n].pins += pins
        job[HELD_KV] -= nodes[n].depth - nodes[above].depth
        c.counts[RESERVED_KV] -= nodes[n].depth - nodes[above].depth
        add_edge(c, n)
        n = above
    for i in range(count):
        n, kind = c.plan[i].node, c.plan[i].kind
        if c.plan[i].depth > limit or nodes[n].slot >= 0 or not is_asked_for(c, kind):
            continue
        leave_state(c, r, job, n, kind, False)
        job[HELD_STATES] -= 1
        c.counts[RESERVED_STATES] -= 1
    return end


@internal
def _take_first_victims(c, r, job, count):
    """States that nobody asked for, where they cost nothing that is worth more."""
    nodes = c.nodes
    for i in range(count):
        n, kind = c.plan[i].node, c.plan[i].kind
        if is_asked_for(c, kind) or nodes[n].slot >= 0:
            continue
        while not _fits(c, 0, 1):
            settle(c, r)
            victim = choose_first(c, r, False)
            if victim < 0:
                victim = choose_normal_if_beaten(c, n, r, r)
            if victim < 0:
                break
            evict(c, victim, r)
        if _fits(c, 0, 1):
            leave_state(c, r, job, n, kind, starts_first(c, kind))


@internal
def choose_normal_if_beaten(c, n, now, made):
    """The next ordinary victim if a state made at ``n`` now is worth more than it, else -1."""
    nodes, rules = c.nodes, c.rules[0]
    policy = rules.policy
    if policy not in (LRU, UTILITY, LINEAR, HYPERBOLIC):
        return np.int32(-1)
    victim = choose_normal(c, now, False)
    if victim < 0:
        return victim
    live = live_ancestor(c, n)
    depth, above = np.int64(nodes[n].depth), np.int64(nodes[live].depth)
    saved = prefill_flops(c, depth) - prefill_flops(c, above)
    freed = rules.state_bytes + rules.kv_bytes * (depth - above)
    old = nodes[victim]
    if policy == LRU:
        new_loss, old_loss = lru.loss(made), lru.loss(old.last_use)
    elif policy == UTILITY:
        new_loss = utility.loss(utility_weight(rules.alpha, saved, freed, 0, False), 1)
        old_loss = utility.loss(old.weight, made + 1 - old.last_use)
    else:
        weight = efficiency_weight(saved, freed)
        new_loss, old_loss = marconi.pair_losses(
            rules.alpha, policy, weight, made, old.weight, old.last_use, made + 1
        )
    return victim if new_loss > old_loss else np.int32(-1)


@internal
def cap_path(c, r, tail):
    """SGLang's --mamba-max-states-per-path: the shallowest that may go, go."""
    nodes = c.nodes
    count = 0
    n = tail
    while n > 0:
        if nodes[n].slot >= 0:
            c.lists[HEADS, count] = n
            count += 1
        n = nodes[n].parent
    excess = count - c.rules[0].max_states_per_path
    for i in range(count - 1, 0, -1):
        if excess <= 0:
            return
        n = c.lists[HEADS, i]
        if nodes[n].pins == 0 and nodes[n].children == 1:
            evict(c, n, r)
            excess -= 1

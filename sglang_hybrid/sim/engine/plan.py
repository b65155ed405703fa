"""Admission: the depths at which a request's states are wanted (docs/simulator.md)."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.sim.engine.residency import cut
from sglang_hybrid.sim.jit import compiled, internal

DECODE_END, BRANCH, PROMPT_END = int(Kind.DECODE_END), int(Kind.BRANCH), int(Kind.PROMPT_END)
CHUNK, SYSTEM_END = int(Kind.CHUNK), int(Kind.SYSTEM_END)


@compiled
def most_positions(c, r):
    """An upper bound on the positions of request ``r``."""
    rules = c.rules[0]
    total = c.requests[r].input_len + c.requests[r].output_len
    most = 8 + rules.ghost_forks
    if rules.block > 0:
        most += total // rules.block + 1
    if rules.chunk > 0:
        most += c.requests[r].input_len // rules.chunk + 1
    return most


@internal
def _want(c, count, depth, kind):
    """Add a position to the first ``count``, which are sorted; one that is there keeps its kind."""
    plan = c.plan
    at = count
    while at > 0 and plan[at - 1].depth > depth:
        at -= 1
    if at > 0 and plan[at - 1].depth == depth:
        return count
    for i in range(count, at, -1):
        plan[i].depth, plan[i].kind = plan[i - 1].depth, plan[i - 1].kind
    plan[at].depth, plan[at].kind = depth, kind
    return count + 1


@internal
def plan(c, r, hit, matched, only_continues):
    """Fill depths and kinds of `plan`, by rising depth; returns how many.

    With two pools only those of the prompt. ``only_continues``: nothing else follows where
    the match ends.
    """
    rules = c.rules[0]
    length = c.requests[r].input_len
    nearest = hit + rules.min_gain
    count = np.int64(0)
    if rules.branch > 0:
        depth = matched if matched < length else length - 1
        depth -= depth % rules.branch
        if (matched < length or rules.branch_full) and depth >= nearest:
            count = _want(c, count, depth, DECODE_END if only_continues else BRANCH)
    if rules.ghost_forks > 0:
        count = _ghost_forks(c, r, count, nearest)
    if rules.system_end and nearest <= c.requests[r].system_len < length:
        count = _want(c, count, c.requests[r].system_len, SYSTEM_END)
    count = _blocks(c, hit, length, count) if rules.has_pools else plan_output(c, r, hit, count)
    if rules.chunk > 0:
        return _chunks(c, r, hit, count)
    if rules.prompt_end > 0:
        depth = length - length % rules.prompt_end
        if depth > hit:
            count = _want(c, count, depth, PROMPT_END)
    return count


@internal
def plan_output(c, r, beyond, count):
    """Positions that do not depend on what is resident: blocks and the last token."""
    rules = c.rules[0]
    total = c.requests[r].input_len + c.requests[r].output_len
    count = _blocks(c, beyond, total, count)
    if rules.decode_end == 1:
        count = _want(c, count, total, DECODE_END)
    elif rules.decode_end > 1:
        depth = total - total % rules.decode_end
        if depth > c.requests[r].input_len:
            count = _want(c, count, depth, DECODE_END)
    return count


@internal
def _blocks(c, beyond, until, count):
    block = c.rules[0].block
    if block > 0:
        for depth in range((beyond // block + 1) * block, until + 1, block):
            count = _want(c, count, depth, CHUNK)
    return count


@internal
def _ghost_forks(c, r, count, nearest):
    """The deepest forks of the prompt, ever seen before this request (or in it)."""
    rules, nodes = c.rules[0], c.nodes
    latest = r if rules.ghost_self else r - 1
    left = rules.ghost_forks
    n = c.requests[r].prompt_node
    while n > 0 and left > 0 and nodes[n].depth >= nearest:
        if nodes[n].fork_time <= latest and nodes[n].depth < c.requests[r].input_len:
            count = _want(c, count, np.int64(nodes[n].depth), BRANCH)
            left -= 1
        n = nodes[n].parent
    return count


@internal
def _chunks(c, r, hit, count):
    """Ends of the prefill's chunks; the last one is the end of the prompt."""
    rules = c.rules[0]
    length = c.requests[r].input_len
    grid = max(1, rules.prompt_end)
    branches = count  # chunk ends are added behind what has been planned so far
    start = hit
    while start < length:
        end = min(start + rules.chunk, length)
        if rules.has_pools and not rules.chunk_or_branch:
            for i in range(count):  # the prefill is cut there and goes on as a new chunk
                if start < c.plan[i].depth < end:
                    end = c.plan[i].depth
                    break
        depth = end - (end - start) % grid
        is_last = end == length
        wanted = depth > start and (not is_last or rules.prompt_end > 0)
        if wanted and rules.chunk_or_branch:
            for i in range(branches):
                is_branch = c.plan[i].kind == BRANCH
                is_branch |= rules.has_pools and c.plan[i].kind == DECODE_END
                if is_branch and start < c.plan[i].depth <= end:
                    wanted = False
        if wanted:
            before = count
            count = _want(c, count, depth, PROMPT_END if is_last else CHUNK)
            branches += count - before
        start = end
    return count


@internal
def find_nodes(c, r, count):
    """Fill the nodes of `plan`, with new cuts where there is no node yet."""
    nodes = c.nodes
    n = c.requests[r].end_node
    for i in range(count - 1, -1, -1):
        depth = c.plan[i].depth
        while nodes[nodes[n].parent].depth >= depth:
            n = nodes[n].parent
        if nodes[n].depth > depth:
            n = cut(c, n, depth)
        c.plan[i].node = n

"""All sequences of a trace in one static radix tree.

The resident part of a cache is at any time a rooted part of this tree (docs/simulator.md,
"Objects"), so a replay only has to mark nodes. The tree is cut at every divergence,
prompt end and sequence end; a replay adds further cuts (grid positions) to its own copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.pages import PAGE_TOKENS
from sglang_hybrid.sim.jit import compiled
from sglang_hybrid.sim.trace import IntArray, Trace

Int32Array = NDArray[np.int32]

NEVER = 2**31 - 1


@dataclass(frozen=True)
class UnionTree:
    """Node 0 is the root. N nodes, R requests.

    Attributes:
        parent: int32[N], -1 for the root.
        depth: tokens from the root, int32[N].
        first_seen: first request that passes the node, int32[N].
        fork_time: first request that made the node a fork (two different continuations
            seen), `NEVER` otherwise. int32[N].
        prompt_node: where each request's prompt ends, int32[R].
        end_node: where its sequence ends, int32[R].
        turn: min(2, ends of earlier sequences on the prompt), which tells how far its
            conversation is; see `compile_trace`. int8[R].
        input_len, output_len: tokens, int64[R].
        system_len: end of the system message, -1 where unknown, int64[R].
    """

    parent: Int32Array
    depth: Int32Array
    first_seen: Int32Array
    fork_time: Int32Array
    prompt_node: Int32Array
    end_node: Int32Array
    turn: NDArray[np.int8]
    input_len: IntArray
    output_len: IntArray
    system_len: IntArray

    @property
    def num_nodes(self) -> int:
        return len(self.parent)

    def path(self, request: int) -> list[int]:
        """Nodes of the request's sequence, deepest first, the root left out."""
        nodes = []
        node = int(self.end_node[request])
        while node > 0:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes


def compile_trace(trace: Trace, page: int = PAGE_TOKENS) -> UnionTree:
    """The union tree of ``trace``; time and memory are linear in its own symbols.

    Args:
        page: tokens to a multiple of which the ends that count for `UnionTree.turn` are
            rounded down; the server knows sequences by their full pages.

    Raises:
        ValueError: sequences longer than 2^31 - 1 tokens.
    """
    longest = int((trace.input_len + trace.output_len).max())
    if longest >= NEVER:
        raise ValueError(f"trace {trace.name!r}: a sequence of {longest} tokens is too long")
    if (trace.parent < 0).all():
        symbols, source = trace.symbols, trace.offsets[:-1]
    else:
        symbols, source = _with_last_kept_symbol(
            trace.symbols, trace.offsets, trace.parent, trace.keep
        )
    parent, depth, first_seen, fork_time, prompt_node, end_node = _build(
        trace.tokens_per_symbol,
        symbols,
        source,
        trace.parent,
        trace.keep,
        trace.input_len,
        trace.output_len,
    )
    return UnionTree(
        parent,
        depth,
        first_seen,
        fork_time,
        prompt_node,
        end_node,
        _turns(parent, depth, prompt_node, end_node, trace.input_len + trace.output_len, page),
        trace.input_len,
        trace.output_len,
        trace.system_len,
    )


@compiled
def _with_last_kept_symbol(symbols, offsets, parent, keep):
    """Own symbols, each request's preceded by the last one that it keeps.

    That one may be partial in the parent and go on here. Returns the symbols and, per
    request, the index that symbol 0 of its full sequence would have in them.
    """
    requests = len(parent)
    result = np.empty(len(symbols) + requests, np.int64)
    source = np.empty(requests, np.int64)
    at = 0
    for r in range(requests):
        kept = keep[r] if parent[r] >= 0 else 0
        source[r] = at + 1 - kept
        last = np.int64(-1)
        if kept > 0:
            owner, k = parent[r], kept - 1
            while parent[owner] >= 0 and k < keep[owner]:
                owner = parent[owner]
            first = keep[owner] if parent[owner] >= 0 else 0
            last = symbols[offsets[owner] + k - first]
        result[at] = last
        at += 1
        for i in range(offsets[r], offsets[r + 1]):
            result[at] = symbols[i]
            at += 1
    return result, source


@compiled
def _slot(table, keys_node, keys_symbol, node, symbol):
    """Where the edge (node, symbol) stands in the hash table, or the free slot for it."""
    mask = len(table) - 1
    mixed = np.uint64(symbol) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(node) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    i = np.int64((mixed >> np.uint64(20)) & np.uint64(mask))
    while table[i] >= 0 and not (keys_node[i] == node and keys_symbol[i] == symbol):
        i = (i + 1) & mask
    return i


@compiled
def _build(width, symbols, source, parents, keep, input_len, output_len):
    requests = len(parents)
    capacity = 4 * requests + 2
    size = 16
    while size < 2 * capacity:
        size *= 2
    table = np.full(size, -1, np.int32)
    keys_node = np.empty(size, np.int32)
    keys_symbol = np.empty(size, np.int64)

    parent = np.empty(capacity, np.int32)
    depth = np.zeros(capacity, np.int32)
    origin = np.zeros(capacity, np.int64)  # index of symbol 0 of the path, in `symbols`
    first_seen = np.zeros(capacity, np.int32)
    fork_time = np.full(capacity, NEVER, np.int32)
    children = np.zeros(capacity, np.int32)
    prompt_node = np.empty(requests, np.int32)
    end_node = np.empty(requests, np.int32)
    parent[0] = -1
    count = 1
    # What `_cut` works on.
    tree = (
        table,
        keys_node,
        keys_symbol,
        parent,
        depth,
        origin,
        first_seen,
        children,
        symbols,
        width,
    )

    for r in range(requests):
        total = input_len[r] + output_len[r]
        node, edge, at = 0, -1, np.int64(0)
        if parents[r] >= 0 and keep[r] > 0:
            node = end_node[parents[r]]
            at = min(keep[r] * width, np.int64(depth[node]), total)
            while depth[node] > at:
                edge = node
                node = parent[node]
            if depth[node] == at:
                edge = -1
        # Follow what is there, then cut or append so that `node` ends at `total`.
        while at < total:
            if edge < 0:
                i = _slot(table, keys_node, keys_symbol, node, symbols[source[r] + at // width])
                if table[i] < 0:
                    leaf = count
                    count += 1
                    table[i] = leaf
                    keys_node[i] = node
                    keys_symbol[i] = symbols[source[r] + at // width]
                    parent[leaf] = node
                    depth[leaf] = total
                    origin[leaf] = source[r]
                    first_seen[leaf] = r
                    children[node] += 1
                    if children[node] > 1 and fork_time[node] == NEVER:
                        fork_time[node] = r
                    node, at = leaf, total
                    break
                edge = table[i]
            limit = min(np.int64(depth[edge]), total)
            k, last = at // width, (limit - 1) // width
            while k <= last and symbols[origin[edge] + k] == symbols[source[r] + k]:
                k += 1
            at = limit if k > last else max(at, k * width)
            if at == depth[edge]:
                node, edge = edge, -1
                continue
            count = _cut(tree, edge, at, count)
            node, edge = count - 1, -1
        if edge >= 0:  # the sequence ends inside an edge that its parent led to
            count = _cut(tree, edge, total, count)
            node = count - 1
        end_node[r] = node
        edge = -1
        while depth[node] > input_len[r]:
            edge = node
            node = parent[node]
        if depth[node] < input_len[r]:
            count = _cut(tree, edge, input_len[r], count)
            node = count - 1
        prompt_node[r] = node
    return (
        parent[:count].copy(),
        depth[:count].copy(),
        first_seen[:count].copy(),
        fork_time[:count].copy(),
        prompt_node,
        end_node,
    )


@compiled
def _turns(parent, depth, prompt_node, end_node, total, page):
    requests = len(total)
    # Positions at which sequences end, as a list for each node whose edge they lie on.
    first = np.full(len(parent), -1, np.int64)
    following = np.full(requests, -1, np.int64)
    ends = total - total % page
    for r in range(requests):
        if ends[r] == 0:
            continue
        n = end_node[r]
        while depth[parent[n]] >= ends[r]:
            n = parent[n]
        other = first[n]
        while other >= 0 and ends[other] != ends[r]:
            other = following[other]
        if other < 0:  # else an earlier one ends there already
            following[r] = first[n]
            first[n] = r
    turn = np.zeros(requests, np.int8)
    for r in range(requests):
        n = prompt_node[r]
        while n > 0 and turn[r] < 2:
            other = first[n]
            while other >= 0 and turn[r] < 2:
                turn[r] += other < r
                other = following[other]
            n = parent[n]
    return turn


@compiled
def _cut(tree, edge, at, count):
    """Cut the edge that leads to node ``edge`` at depth ``at``; the new node is ``count``."""
    table, keys_node, keys_symbol, parent, depth, origin, first_seen, children, symbols, width = (
        tree
    )
    above = parent[edge]
    i = _slot(table, keys_node, keys_symbol, above, symbols[origin[edge] + depth[above] // width])
    table[i] = count
    parent[count] = above
    depth[count] = at
    origin[count] = origin[edge]
    first_seen[count] = first_seen[edge]
    children[count] = 1
    parent[edge] = count
    i = _slot(table, keys_node, keys_symbol, count, symbols[origin[edge] + at // width])
    table[i] = edge
    keys_node[i] = count
    keys_symbol[i] = symbols[origin[edge] + at // width]
    return count + 1

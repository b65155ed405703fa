"""Where states can ever be, for the bounds of `bounds`: a superset of what admission reaches.

The union tree is cut further at these positions, and every position gets the first
request that can take a state there. Each rule of docs/simulator.md, "Admission", adds its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.jit import compiled
from sglang_hybrid.sim.trace import IntArray
from sglang_hybrid.sim.union_tree import NEVER, Int32Array, UnionTree


@dataclass(frozen=True)
class Positions:
    """Rows of the refined tree; a row is a position and the edge that leads to it.

    Attributes:
        parent: row above, -1 for the root.
        depth: tokens from the root.
        ready: first request that can take a state here, `NEVER` if none can.
        prompt_row: where each request's prompt ends.
        end_row: where its sequence ends.
        grids: of those positions that are multiples of a grid. Only the outermost ones of
            every edge are rows: a state in between gains no more than the better of them.
    """

    parent: IntArray
    depth: IntArray
    ready: IntArray
    prompt_row: IntArray
    end_row: IntArray
    grids: tuple[int, ...]


class _Marks(NamedTuple):
    """Positions ``depth`` tokens from the root, on the paths to the nodes ``node``."""

    node: IntArray
    depth: IntArray
    ready: IntArray


def reachable(
    tree: UnionTree,
    admission: Admission,
    evidence: bool = False,
    system_len: IntArray | None = None,
) -> Positions:
    """Positions that ``admission`` can reach on ``tree``, whatever is resident when.

    ``evidence``: resident KV may end where no state is, as beside running requests, which pin
    it, and in a KV pool.
    """
    grids = _grids(admission, system_len)
    marks = [*_rule_marks(tree, admission, evidence, system_len)]
    for grid in grids:
        marks += _grid_marks(tree, grid)
    return _refine(tree, marks, grids)


def _grids(admission: Admission, system_len: IntArray | None) -> tuple[int, ...]:
    """Grids whose every multiple may hold a state."""
    grids = set()
    if admission.block_tokens:
        grids.add(admission.block_tokens)
    if admission.system_end and system_len is None:
        grids.add(1)
    if admission.chunk_tokens:
        # Chunks start at a hit, that is, at any other position; ends are rounded from there.
        exact = 1 if admission.ghost_forks or admission.system_end else 0
        grids.add(
            math.gcd(
                admission.chunk_tokens,
                admission.prompt_end,
                admission.branch,
                admission.decode_end,
                admission.block_tokens,
                exact,
            )
        )
    return tuple(sorted(grids))


def _rule_marks(
    tree: UnionTree, admission: Admission, evidence: bool, system_len: IntArray | None
) -> Iterator[_Marks]:
    depth, fork_time = tree.depth.astype(np.int64), tree.fork_time.astype(np.int64)
    forks = np.flatnonzero(fork_time != NEVER)
    requests = np.arange(len(tree.input_len))
    prompt, end = tree.prompt_node.astype(np.int64), tree.end_node.astype(np.int64)
    total = tree.input_len + tree.output_len
    grid = admission.branch
    if grid:
        # Where a prompt leaves resident KV two continuations have been seen, its own included;
        # at a resident leaf there is a state already.
        yield _Marks(forks, _floor(depth[forks], grid), fork_time[forks])
        if admission.branch_full:
            yield _Marks(prompt, _floor(tree.input_len - 1, grid), requests)
        if evidence:  # which ends at a prompt, or at a sequence
            yield _Marks(prompt, _floor(tree.input_len, grid), requests)
            yield _Marks(end, _floor(total, grid), requests)
    if admission.ghost_forks:
        yield _Marks(forks, depth[forks], fork_time[forks])
    if admission.decode_end:
        at = _floor(total, admission.decode_end)
        if admission.decode_end > 1:
            at = np.where(at > tree.input_len, at, 0)
        yield _Marks(end, at, requests)
    if admission.prompt_end and not admission.chunk_tokens:
        yield _Marks(prompt, _floor(tree.input_len, admission.prompt_end), requests)
    if admission.system_end and system_len is not None:
        yield _Marks(prompt, np.where(system_len < tree.input_len, system_len, 0), requests)


def _grid_marks(tree: UnionTree, grid: int) -> Iterator[_Marks]:
    """First and last multiple of ``grid`` on every edge, and the last before its end.

    All states on one edge are passed by the same requests, so what they cost grows linearly
    with depth, and what they save is convex: the best is the first or the last. The last
    request of a prompt may not use is its very end.
    """
    nodes = np.arange(1, tree.num_nodes)
    lower = tree.depth[tree.parent[nodes]].astype(np.int64)
    upper = tree.depth[nodes].astype(np.int64)
    ready = tree.first_seen[nodes].astype(np.int64)
    for at in (_floor(lower, grid) + grid, _floor(upper - 1, grid), _floor(upper, grid)):
        inside = (at > lower) & (at <= upper)
        yield _Marks(nodes[inside], at[inside], ready[inside])


def _floor(values: IntArray, grid: int) -> IntArray:
    result: IntArray = values - values % grid
    return result


def _refine(tree: UnionTree, marks: list[_Marks], grids: tuple[int, ...]) -> Positions:
    """Cut the tree at the marks: rows sorted by the node that ends their edge, then depth."""
    nodes = np.arange(tree.num_nodes)
    marks = [*marks, _Marks(nodes, tree.depth.astype(np.int64), np.full(len(nodes), NEVER))]
    node, depth, ready = (np.concatenate(column) for column in zip(*marks, strict=True))
    kept = (depth > 0) | (node == 0)
    node, depth, ready = node[kept], depth[kept], ready[kept]
    node = _edge_at(tree.parent, tree.depth, node, depth)
    order = np.lexsort((depth, node))
    node, depth, ready = node[order], depth[order], ready[order]
    first = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(depth) != 0)])
    ready = np.minimum.reduceat(ready, first)
    node, depth = node[first], depth[first]
    row_of_node: NDArray[np.int64] = np.searchsorted(node, nodes, side="right") - 1
    starts_edge = np.r_[True, np.diff(node) != 0]
    parent = np.where(starts_edge, row_of_node[tree.parent[node]], np.arange(len(node)) - 1)
    parent[0] = -1
    ready[0] = NEVER  # the root costs nothing and saves nothing
    prompt_row, end_row = row_of_node[tree.prompt_node], row_of_node[tree.end_node]
    return Positions(parent, depth, ready, prompt_row, end_row, grids)


@compiled
def _edge_at(parent: Int32Array, depth: Int32Array, node: IntArray, at: IntArray) -> IntArray:
    """The node that ends the edge on which ``at`` tokens lie, for paths to ``node``."""
    result = node.copy()
    for i in range(len(node)):
        while result[i] > 0 and depth[parent[result[i]]] >= at[i]:
            result[i] = parent[result[i]]
    return result

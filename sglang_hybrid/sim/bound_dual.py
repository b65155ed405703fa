"""Compiled part of `bounds`: the dual function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.sim.jit import compiled
from sglang_hybrid.sim.trace import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


@compiled
def states_on_paths(parent: IntArray, ready: IntArray, end_row: IntArray) -> IntArray:
    """Rows of each request's path that may hold a state when the request ends."""
    counts = np.zeros(len(end_row), np.int64)
    for r in range(len(end_row)):
        row = end_row[r]
        while row > 0:
            counts[r] += ready[row] <= r
            row = parent[row]
    return counts


@compiled
def best_choices(
    parent: IntArray,
    depth: IntArray,
    ready: IntArray,
    prompt_row: IntArray,
    end_row: IntArray,
    input_len: IntArray,
    keeps_kv: BoolArray,
    keeps_end: BoolArray,
    state_size: float,
    kv_size: float,
    linear: float,
    quadratic: float,
    prices: FloatArray,
    occupancy: FloatArray,
) -> float:
    """Gain less pay of all requests, each of which chooses its best row, or none.

    A row gains ``(linear + quadratic * depth) * depth`` and pays ``prices[t]`` per unit of
    size that it occupies at moment t. ``occupancy`` gets the sizes that the choices charge at
    every moment. ``keeps_kv`` and ``keeps_end``: requests whose sequence, or end state, is
    resident at their own moment anyhow, and charged to nobody.
    """
    requests = len(end_row)
    paid = np.zeros(requests + 1)  # prices of all moments before
    paid[1:] = np.cumsum(prices)
    occupancy[:] = 0.0
    last_pass = np.full(len(parent), -1, np.int64)
    path = np.empty(len(parent), np.int64)
    total = 0.0
    for r in range(requests):
        length = 0
        row = prompt_row[r]
        while row > 0:
            path[length] = row
            length += 1
            row = parent[row]
        best, chosen = 0.0, -1
        kv_pay = 0.0
        for i in range(length - 1, -1, -1):
            row = path[i]
            before = last_pass[row]
            if before < 0:
                break
            kv = kv_size * (depth[row] - depth[parent[row]])
            kv_pay += kv * (paid[r] - paid[before + keeps_kv[before]])
            if ready[row] >= r or depth[row] >= input_len[r]:
                continue
            kept = keeps_end[before] and end_row[before] == row
            pay = kv_pay + state_size * (paid[r] - paid[before + kept])
            gain = (linear + quadratic * depth[row]) * depth[row] - pay
            if gain > best:
                best, chosen = gain, i
        total += best
        if chosen >= 0:
            before = last_pass[path[chosen]]
            kept = keeps_end[before] and end_row[before] == path[chosen]
            occupancy[before + kept] += state_size
            occupancy[r] -= state_size
            for i in range(chosen, length):
                row = path[i]
                before = last_pass[row]
                kv = kv_size * (depth[row] - depth[parent[row]])
                occupancy[before + keeps_kv[before]] += kv
                occupancy[r] -= kv
        row = end_row[r]
        while row > 0:
            last_pass[row] = r
            row = parent[row]
    occupancy[:] = np.cumsum(occupancy)
    return total

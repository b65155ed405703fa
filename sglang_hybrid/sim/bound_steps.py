"""Compiled part of `bounds`: what every request could gain, and at which occupancy."""

from __future__ import annotations

import numpy as np

from sglang_hybrid.sim.jit import compiled


@compiled
def states_on_paths(parent, ready, end_row):  # type: ignore[no-untyped-def]
    """Rows of each request's path that may hold a state when the request ends."""
    counts = np.zeros(len(end_row), np.int64)
    for r in range(len(end_row)):
        row = end_row[r]
        while row > 0:
            counts[r] += ready[row] <= r
            row = parent[row]
    return counts


@compiled
def hull_steps(  # type: ignore[no-untyped-def]
    parent,
    depth,
    ready,
    prompt_row,
    end_row,
    input_len,
    is_inserted,
    state_price,
    kv_price,
    linear,
    quadratic,
):
    """Steps of the concave hull of every request's (occupancy, gain), all in one array each.

    A request may hit at one of the rows of its prompt, or nowhere: (0, 0). Occupancy is
    in price x requests; gain is ``(linear + quadratic * depth) * depth``.
    """
    last_pass = np.full(len(parent), -1, np.int64)
    path = np.empty(len(parent), np.int64)
    hull_costs = np.zeros(len(parent) + 1)
    hull_gains = np.zeros(len(parent) + 1)
    costs = np.empty(1024)
    gains = np.empty(1024)
    count = 0
    for r in range(len(end_row)):
        length = 0
        row = prompt_row[r]
        while row > 0:
            path[length] = row
            length += 1
            row = parent[row]
        top = 0  # of the hull; entry 0 is (0, 0)
        kv_cost = 0.0
        for i in range(length - 1, -1, -1):
            row = path[i]
            before = last_pass[row]
            if before < 0:
                break
            waited = r - before
            tokens = depth[row] - depth[parent[row]]
            kv_cost += kv_price * tokens * (waited - is_inserted[before])
            if ready[row] >= r or depth[row] >= input_len[r]:
                continue
            cost = kv_cost + state_price * waited
            gain = (linear + quadratic * depth[row]) * depth[row]
            while top > 0 and (hull_gains[top] - hull_gains[top - 1]) * (
                cost - hull_costs[top - 1]
            ) <= (gain - hull_gains[top - 1]) * (hull_costs[top] - hull_costs[top - 1]):
                top -= 1
            top += 1
            hull_costs[top] = cost
            hull_gains[top] = gain
        if count + top > len(costs):
            costs = np.append(costs, np.empty(len(costs) + top))
            gains = np.append(gains, np.empty(len(gains) + top))
        for i in range(top):
            costs[count] = hull_costs[i + 1] - hull_costs[i]
            gains[count] = hull_gains[i + 1] - hull_gains[i]
            count += 1
        row = end_row[r]
        while row > 0:
            last_pass[row] = r
            row = parent[row]
    return costs[:count].copy(), gains[:count].copy()

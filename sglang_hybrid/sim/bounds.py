"""What no eviction policy can exceed, online or offline, with a given admission and budget.

The bound relaxes the memory limit to an average over time. Notation as in
docs/simulator.md; B is the budget in bytes, R the number of requests, and a request
*passes* a position if its sequence, input and output, runs through it.

**Moments.** Occupancy is looked at once per request: when its step 8 is over, before it unpins.
At each such moment the resident bytes are at most B: step 6 makes room for all that step 7
inserts, step 8 takes only what fits, and a rejected request adds nothing.

**Charges.** Let request r hit a state at position p, and let s < r be the last request
before r that passes p. A state is only ever made by a request that passes its position, so
this one was made by s or earlier, and it is not made anew between s and r: it is resident at
the r - s moments of s, ..., r - 1. Charge r with `state_bytes` for each. In the same way
every token x above p, last passed by s(x), is resident at the moments of s(x), ..., r - 1,
because only requests that pass a token insert it; charge r with `kv_bytes_per_token` for
each. A later request's charge for the same state or token begins at r or later, because r
passes it. So at every moment each resident state and token is charged at most once, and all
charges together are at most the sum of resident bytes over the moments of requests
0, ..., R - 2 (nothing is charged at the last), which is at most B (R - 1).

**Inserted requests.** If a request t is certain to be inserted whole, its tot tokens are
resident at its moment, used again or not. Then those of them that are charged
at that moment need not be: charge tokens with s(x) = t for r - s(x) - 1 moments only, and the
moment of t with the capacity B - kv_bytes_per_token x tot instead of B. It is certain if
all its tokens, with a state at every position that admission can reach on its path, fit in B,
for all else can be evicted. (Not with `truncate`, which may insert less.)

**Relaxation.** Each request picks at most one position that admission can reach
(`bound_positions`), that was ready before, at most in - 1 tokens deep, such that the charges of
all stay within the sum of capacities. Every replay is such a choice. Choices may be
mixed: that linear program (a multiple-choice knapsack) is solved exactly by taking the steps of
the requests' concave hulls of (charge, gain) in order of gain per charge; the last step taken,
in part, has the Lagrange multiplier that minimises the dual.

Two pools: the argument holds for slots and for tokens by themselves and for the bytes of
both together; the least of the three bounds counts. Concurrent replay: moments are those after the start
of each request, and what is reserved counts as resident. A state that enters at the end of its
request is reserved from its start on, so all of the above holds for
starts in the place of requests; positions differ a little (``replay="concurrent"``).

An infinite cache is *not* such a bound: with less memory a prompt may leave the resident tree
at an earlier fork, and take a state there that an infinite cache would not have.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.bound_positions import Positions, Replay, reachable
from sglang_hybrid.sim.bound_steps import hull_steps, states_on_paths
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.trace import FloatArray, IntArray
from sglang_hybrid.sim.union_tree import UnionTree

Objective = Literal["flops", "tokens"]


def upper_bound(
    tree: UnionTree,
    costs: ModelCosts,
    admission: Admission,
    budget: Budget | float,
    *,
    objective: Objective = "flops",
    replay: Replay = "serial",
    system_len: IntArray | None = None,
    infinite: float = float("inf"),
) -> float:
    """FLOPs (or tokens) that no replay saves (or hits) more of, up to rounding.

    Args:
        budget: bytes for KV and states together, or a `Budget`, which may have two pools.
        system_len: of the trace; makes the bound tighter if admission takes system ends.
        infinite: what an infinite cache with this admission reaches, where known. The
            result is then at most that, which is no longer proven, though rarely wrong.
    """
    if not isinstance(budget, Budget):
        budget = Budget(budget)
    positions = reachable(tree, admission, replay, system_len)
    is_inserted = _surely_inserted(tree, costs, admission, budget, positions)
    if objective == "flops":
        gain = costs.flops_linear, costs.flops_quadratic
    else:
        gain = 1.0, 0.0
    bounds = [infinite]
    for limit in _limits(costs, budget):
        charges, gains = hull_steps(
            positions.parent,
            positions.depth,
            positions.ready,
            positions.prompt_row,
            positions.end_row,
            tree.input_len,
            is_inserted,
            limit.state_price,
            limit.kv_price,
            *gain,
        )
        taken = (is_inserted * (tree.input_len + tree.output_len))[:-1].sum() * limit.kv_price
        capacity = limit.size * (len(tree.input_len) - 1) - taken
        bounds.append(_fill(charges, gains, capacity))
    return min(bounds)


def full_kv_reuse(tree: UnionTree) -> int:
    """Input tokens seen before, in an earlier sequence, and at most in - 1 per prompt.

    That many hits a cache would reach that keeps all KV and a state at every token: a bound
    for all admissions.
    """
    first_seen, requests = tree.first_seen, np.arange(len(tree.input_len))
    node = tree.prompt_node.copy()
    while (unseen := (node > 0) & (first_seen[node] >= requests)).any():
        node[unseen] = tree.parent[node[unseen]]
    return int(np.minimum(tree.depth[node], tree.input_len - 1).sum())


def objective_total(tree: UnionTree, costs: ModelCosts, objective: Objective = "flops") -> float:
    """Of all prompts: what a bound or a replay is divided by to get a share."""
    tokens = tree.input_len.astype(np.float64)
    if objective == "tokens":
        return float(tokens.sum())
    return float(((costs.flops_linear + costs.flops_quadratic * tokens) * tokens).sum())


class _Limit(NamedTuple):
    """At no moment do prices of what is resident add up to more than ``size``."""

    state_price: float
    kv_price: float
    size: float


def _limits(costs: ModelCosts, budget: Budget) -> list[_Limit]:
    state, kv = costs.state_bytes, costs.kv_bytes_per_token
    if budget.state_slots is None or budget.kv_tokens is None:
        return [_Limit(state, kv, budget.total_bytes)]
    slots, tokens = budget.state_slots, budget.kv_tokens
    return [
        _Limit(1.0, 0.0, slots),
        _Limit(0.0, 1.0, tokens),
        _Limit(state, kv, state * slots + kv * tokens),
    ]


def _surely_inserted(
    tree: UnionTree,
    costs: ModelCosts,
    admission: Admission,
    budget: Budget,
    positions: Positions,
) -> NDArray[np.bool_]:
    """Requests that cannot be rejected, and are inserted whole."""
    total = tree.input_len + tree.output_len
    if admission.truncate:
        return np.zeros(len(total), np.bool_)
    states = states_on_paths(positions.parent, positions.ready, positions.end_row)
    for grid in positions.grids:
        states = states + total // grid
    fits = np.ones(len(total), np.bool_)
    for limit in _limits(costs, budget):
        fits &= limit.kv_price * total + limit.state_price * states <= limit.size
    return fits


def _fill(charges: FloatArray, gains: FloatArray, capacity: float) -> float:
    """The most that steps gain within ``capacity``; one of them may be taken in part."""
    with np.errstate(divide="ignore"):
        order = np.argsort(-(gains / charges), kind="stable")
    charges, gains = charges[order], gains[order]
    filled = np.cumsum(charges)
    whole = int(np.searchsorted(filled, capacity, side="right"))
    result = float(gains[:whole].sum())
    if whole < len(gains):
        room = capacity - (filled[whole - 1] if whole else 0.0)
        result += float(gains[whole]) * max(0.0, room) / float(charges[whole])
    return result

"""What no eviction policy can exceed, online or offline, with a given admission and budget.

Notation as in docs/simulator.md; B is the budget in bytes, R the number of requests, and a
request *passes* a position if its sequence, input and output, runs through it.

**Moments.** Occupancy is looked at once per request: when its step 8 is over, before it
unpins. The resident bytes are then at most B: step 6 makes room for all that step 7 inserts,
step 8 takes only what fits, and a rejected request adds nothing.

**Charges.** Let request r hit a state at position p, and let s < r be the last request
before r that passes p. A state is only ever made by a request that passes its position, so
this one was made by s or earlier, and is not made anew between s and r: it is resident at the
moments of s, ..., r - 1. Charge r with `state_bytes` at each of them. In the same way every
token x down to p, last passed by s(x), is resident at the moments of s(x), ..., r - 1,
because only requests that pass a token insert it; charge r with `kv_bytes_per_token`
at each. A later request's charge for the same state or token begins at r or later, because r
passes it. So at every moment each resident state and token is charged at most once, and the
charges at one moment are at most B in all.

**Kept anyhow.** If request t is certain to be inserted, its tot tokens (and with `decode_end`
= 1 the state at tot) are resident at its own moment, used again or not. So they need not be
charged to anybody at that moment if they are deducted from B instead. Insertion is certain
if all its tokens, with a state at every position of its path that admission can reach, fit
in B, for all else can be evicted. (Not with `truncate`, which may insert less.)

**Relaxation.** Each request picks one position, or none, that admission can reach
(`bound_positions`), ready before r and at most in - 1 tokens deep, such that at no moment t
the charges exceed what is left of B, C(t). Every replay is such a choice. Now let bytes at
moment t have a price z(t) >= 0 in place of the limit: each request takes what gains
most after pay, and C(t) z(t) is added back. By weak duality the sum is a bound for
every choice of prices, so it does not matter for its validity how they are found, only
for its tightness: a multiplicative subgradient descent raises the prices of moments that
are overbooked and lowers the others; the least sum seen is the result.

**Two pools.** The argument holds for slots and for tokens by themselves and for the bytes of
both together; the least of the three bounds counts.

**Concurrent replay.** Moments are those after the start of each request, and what is
reserved counts as resident. What enters at the end of its request is reserved from its start
on, so all of the above holds for starts in the place of requests; the positions differ a little
(``replay="concurrent"``).

An infinite cache is *not* such a bound: with less memory a prompt may leave the resident tree
at an earlier fork, and take a state there that an infinite cache never has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.bound_dual import best_choices, states_on_paths
from sglang_hybrid.sim.bound_positions import Positions, reachable
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.trace import FloatArray, IntArray
from sglang_hybrid.sim.union_tree import UnionTree

Objective = Literal["flops", "tokens"]
Replay = Literal["serial", "concurrent"]


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
    rounds: int = 200,
) -> float:
    """FLOPs (or tokens) that no replay saves (or hits) more of, up to rounding.

    Args:
        budget: bytes for KV and states together, or a `Budget`, which may have two pools.
        system_len: of the trace; makes the bound tighter if admission takes system ends.
        infinite: what an infinite cache with this admission reaches, where known. The
            result is then at most that, which is no longer proven, though rarely wrong.
        rounds: of the search for prices; more make the bound a little tighter.
    """
    if not isinstance(budget, Budget):
        budget = Budget(budget)
    evidence = replay == "concurrent" or budget.has_pools
    positions = reachable(tree, admission, evidence, system_len)
    keeps_kv = _surely_inserted(tree, costs, admission, budget, positions)
    # A chunk position at the end would take the place of the decode end, and may be skipped.
    may_skip_end = admission.first_victims and admission.block_tokens > 0
    keeps_end = keeps_kv & (admission.decode_end == 1 and not may_skip_end)
    flops = objective == "flops"
    gain = (costs.flops_linear, costs.flops_quadratic) if flops else (1.0, 0.0)
    bounds = [
        _Relaxation(tree, positions, keeps_kv, keeps_end, limit, gain).least_dual(rounds)
        for limit in _limits(costs, budget)
    ]
    return min(infinite, *bounds)


def full_kv_reuse(tree: UnionTree) -> int:
    """Input tokens seen before, in an earlier sequence, and at most in - 1 per prompt.

    That many hits a cache would reach that keeps all KV and a state at every token: a bound
    for all admissions.
    """
    return int(full_kv_hits(tree).sum())


def full_kv_hits(tree: UnionTree) -> IntArray:
    """The same for each request."""
    first_seen, requests = tree.first_seen, np.arange(len(tree.input_len))
    node = tree.prompt_node.copy()
    while (unseen := (node > 0) & (first_seen[node] >= requests)).any():
        node[unseen] = tree.parent[node[unseen]]
    hits: IntArray = np.minimum(tree.depth[node], tree.input_len - 1)
    return hits


def objective_total(tree: UnionTree, costs: ModelCosts, objective: Objective = "flops") -> float:
    """Of all prompts: what a bound or a replay is divided by to get a share."""
    tokens = tree.input_len.astype(np.float64)
    if objective == "tokens":
        return float(tokens.sum())
    return float(((costs.flops_linear + costs.flops_quadratic * tokens) * tokens).sum())


class _Limit(NamedTuple):
    """At no moment do the sizes of what is resident add up to more than ``total``."""

    state_size: float
    kv_size: float
    total: float


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
        fits &= limit.kv_size * total + limit.state_size * states <= limit.total
    if budget.state_slots is not None:
        fits &= budget.state_slots >= 2  # with a hit, a copy of its state to work on
    return fits


@dataclass(frozen=True)
class _Relaxation:
    """The relaxation of one limit. ``gain``: linear and quadratic, per token of a hit."""

    tree: UnionTree
    positions: Positions
    keeps_kv: NDArray[np.bool_]
    keeps_end: NDArray[np.bool_]
    limit: _Limit
    gain: tuple[float, float]

    def least_dual(self, rounds: int) -> float:
        """The least value of the dual function that ``rounds`` steps of descent find."""
        requests = len(self.tree.input_len)
        occupancy = np.empty(requests)
        least = self._net_gain(np.zeros(requests), occupancy)
        room = self._capacity()
        if least == 0 or np.isinf(room).any():
            return least
        # The price at which all room together costs what there is to gain.
        unit = least / max(room.sum(), self.limit.state_size, self.limit.kv_size)
        prices = np.full(requests, 0.1 * unit)
        prices[-1] = 0.0  # nothing is charged at the last moment
        scale = np.maximum(room, self.limit.state_size + self.limit.kv_size)
        for i in range(rounds):
            value = self._net_gain(prices, occupancy) + float(prices @ room)
            least = min(least, value)
            overbooked = np.clip((occupancy - room) / scale, -3.0, 3.0)
            prices[:-1] *= np.exp(2.0 / np.sqrt(i + 1) * overbooked[:-1])
            np.maximum(prices[:-1], 1e-5 * unit, out=prices[:-1])
        return least

    def _capacity(self) -> FloatArray:
        """What is left of the limit at every moment, beside what is kept anyhow."""
        tokens = self.tree.input_len + self.tree.output_len
        kept = self.keeps_kv * tokens * self.limit.kv_size + self.keeps_end * self.limit.state_size
        result: FloatArray = self.limit.total - kept
        return result

    def _net_gain(self, prices: FloatArray, occupancy: FloatArray) -> float:
        at = self.positions
        return best_choices(
            at.parent,
            at.depth,
            at.ready,
            at.prompt_row,
            at.end_row,
            self.tree.input_len,
            self.keeps_kv,
            self.keeps_end,
            self.limit.state_size,
            self.limit.kv_size,
            *self.gain,
            prices,
            occupancy,
        )

"""One cell of a comparison: a policy, an admission and a budget, replayed or bounded."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.bounds import full_kv_hits, objective_total, upper_bound
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.engine.cache import new_cache
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.replay import ConcurrentReplay
from sglang_hybrid.sim.results import Bound, InForce, ReplayResult, Row, Setting, flops_of
from sglang_hybrid.sim.trace import FloatArray
from sglang_hybrid.sim.tuning import Strategy, run
from sglang_hybrid.sim.workload import Workload


@dataclass(frozen=True)
class ReplayCell:
    """A replay.

    Attributes:
        policy: its name in the results.
        budget: None: without limit.
    """

    policy: str
    strategy: Strategy
    admission: Admission
    budget: Budget | None

    def run(self, load: Workload) -> ReplayResult:
        """Replay the whole trace."""
        make = None
        if load.concurrency is not None:

            def make(policy: PolicySpec, admission: Admission) -> ConcurrentReplay:
                return _concurrent(load, policy, admission, self.budget)

        done = run(load.tree, load.costs, self.strategy, self.admission, self.budget, make)
        served = done.replay.served
        if isinstance(done.replay, ConcurrentReplay):
            ttft = done.replay.ttft
        else:
            ttft = load.prefill.seconds(load.tree.input_len, served.hits)
        return ReplayResult.of(
            load,
            setting(load, self.policy, self.admission, self.budget),
            (served.hits, served.matched, ttft),
            rejected=int((~served.cached).sum()),
            cache=done.replay.cache,
            switches=tuple(InForce.of(switch) for switch in done.switches),
        )

    def __str__(self) -> str:
        return _name(self.policy, self.admission, self.budget)


@dataclass(frozen=True)
class UncachedCell:
    """Every prefill computed from nothing."""

    policy: str = "none"

    def run(self, load: Workload) -> ReplayResult:
        """Without a cache only times depend on the order of requests."""
        nothing = np.zeros(len(load), np.int64)
        seconds = load.prefill.seconds(load.tree.input_len, nothing)
        ttft = seconds if load.concurrency is None else uncached_ttft(load, seconds)
        return ReplayResult.of(
            load, setting(load, self.policy, None, None), (nothing, nothing, ttft)
        )

    def __str__(self) -> str:
        return self.policy


@dataclass(frozen=True)
class BoundCell:
    """`bounds.upper_bound` of tokens and of FLOPs."""

    admission: Admission
    budget: Budget
    policy: str = "bound"

    def run(self, load: Workload) -> Bound:
        """Both bounds; they need not belong to one and the same choice of hits."""
        options: dict[str, Any] = {
            "replay": "serial" if load.concurrency is None else "concurrent",
            "system_len": load.tree.system_len,
        }
        tree, costs = load.tree, load.costs
        most = {
            objective: upper_bound(
                tree, costs, self.admission, self.budget, objective=objective, **options
            )
            for objective in ("tokens", "flops")
        }
        return _bound(load, setting(load, self.policy, self.admission, self.budget), **most)

    def __str__(self) -> str:
        return _name(self.policy, self.admission, self.budget)


@dataclass(frozen=True)
class FullKvCell:
    """Everything seen before is hit, as if there were a state at every token."""

    policy: str = "full-kv"

    def run(self, load: Workload) -> Bound:
        hits = full_kv_hits(load.tree)
        return _bound(
            load,
            setting(load, self.policy, None, None),
            tokens=float(hits.sum()),
            flops=float(flops_of(load.costs, hits).sum()),
        )

    def __str__(self) -> str:
        return self.policy


Cell = ReplayCell | UncachedCell | BoundCell | FullKvCell


def run_cell(load: Workload, cell: Cell) -> Row:
    """The row of ``cell``.

    Raises:
        CellError: names the cell.
    """
    try:
        return cell.run(load)
    except Exception as error:
        raise CellError(f"{cell}: {type(error).__name__}: {error}") from error


class CellError(RuntimeError):
    """A cell that could not be computed; the message begins with its name."""


def setting(
    load: Workload, policy: str, admission: Admission | None, budget: Budget | None
) -> Setting:
    """What identifies a row."""
    return Setting(
        trace=load.trace,
        model=load.model,
        policy=policy,
        admission=admission.name if admission else None,
        budget_bytes=budget.total_bytes if budget else None,
        state_slots=budget.state_slots if budget else None,
        kv_tokens=budget.kv_tokens if budget else None,
        ratio=budget.ratio if budget else None,
    )


def uncached_ttft(load: Workload, prefill_seconds: FloatArray) -> FloatArray:
    """TTFT of a concurrent replay in which nothing is cached, so that nothing has to fit."""
    assert load.concurrency is not None
    most, per_token = load.concurrency.max_running, load.concurrency.seconds_per_output_token
    ends: list[float] = []
    start = prefill_end = 0.0
    ttft = np.empty(len(load))
    for r, arrived in enumerate(load.arrival):
        if np.isnan(arrived):
            arrived = start
        start = max(start, arrived)
        while ends and (ends[0] <= start or len(ends) == most):
            start = max(start, heapq.heappop(ends))
        prefill_end = max(start, prefill_end) + prefill_seconds[r]
        ttft[r] = prefill_end - arrived
        heapq.heappush(ends, prefill_end + load.tree.output_len[r] * per_token)
    return ttft


def _concurrent(
    load: Workload, policy: PolicySpec, admission: Admission, budget: Budget | None
) -> ConcurrentReplay:
    assert load.concurrency is not None
    prefill = load.prefill
    return ConcurrentReplay(
        new_cache(load.tree, load.costs, policy, admission, budget),
        load.arrival,
        (*prefill.table(), prefill.overhead_seconds, prefill.floor_seconds),
        load.concurrency.max_running,
        load.concurrency.seconds_per_output_token,
    )


def _bound(load: Workload, setting: Setting, tokens: float, flops: float) -> Bound:
    return Bound(
        **vars(setting),
        requests=len(load),
        token_hit_rate=tokens / objective_total(load.tree, load.costs, "tokens"),
        flops_saved=flops,
        flops_saved_share=flops / objective_total(load.tree, load.costs),
    )


def _name(policy: str, admission: Admission, budget: Budget | None) -> str:
    size = "without limit" if budget is None else f"{budget.total_bytes:.0f} bytes"
    if budget is not None and budget.has_pools:
        size = f"{budget.state_slots} states and {budget.kv_tokens} tokens"
    return f"{policy}, {admission.name}, {size}"

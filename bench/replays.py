"""Replays of traces in the simulator, as the reports of this folder need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim import tuning
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.prefill_time import PrefillTime
from sglang_hybrid.sim.replay import count
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.union_tree import UnionTree, compile_trace

TRACES = ("taubench", "taubench_jit", "miniswe", "mooncake", "mooncake_synth", "weka")
"""Names of the stored traces; docs/paper.md tells how each is made from its public source."""

MARCONI_FORMS = ("marconi:bucket_width=0", "marconi-hyperbolic")
"""Linear and hyperbolic recency, every candidate compared at each eviction, as in the paper."""

HINDSIGHT_ALPHAS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Workload:
    """A trace, ready to be replayed."""

    name: str
    tree: UnionTree

    def __len__(self) -> int:
        return len(self.tree.input_len)


@dataclass(frozen=True)
class Outcome:
    """What one replay came to.

    Attributes:
        hit_rate: tokens reused, of all prompt tokens.
        saved: prefill FLOPs saved, of those of all prompts.
        pflops: prefill FLOPs saved, in 10^15.
        kv_reused: inserted KV tokens that were part of a hit, as a share.
        states_reused: states that were consumed, as a share.
        rejected: requests that did not fit, as a share.
        alpha: weight of efficiency in force at the end.
        ttft_p95: seconds; None without a model of prefill times.
    """

    hit_rate: float
    saved: float
    pflops: float
    kv_reused: float
    states_reused: float
    rejected: float
    alpha: float
    ttft_p95: float | None = None

    def as_json(self) -> dict[str, float]:
        """Rounded: more digits only make reruns look different."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        return {key: round(value, 5) for key, value in known.items()}


def trace_path(folder: Path, name: str) -> Path:
    """Where trace ``name`` is stored."""
    return folder / f"{name}.jsonl.gz"


def missing_traces(folder: Path) -> list[str]:
    """Names of the stored traces that ``folder`` lacks."""
    return [name for name in TRACES if not trace_path(folder, name).exists()]


def load_workload(
    source: str | Path, limit: int | None = None, arrival: str | None = None, gap: str | None = None
) -> Workload:
    """A stored or generated trace; ``arrival`` and ``gap`` give it other times."""
    trace = load_trace(source, limit=limit, arrival=arrival, gap=gap)
    return Workload(trace.name, compile_trace(trace))


def measure(
    workload: Workload,
    costs: ModelCosts,
    policy: str,
    admission: str,
    total_bytes: float | None,
    prefill: PrefillTime | None = None,
) -> Outcome:
    """Replay ``workload`` serially; ``total_bytes`` None is a cache without limit."""
    budget = None if total_bytes is None else Budget(total_bytes)
    strategy = tuning.parse_strategy(policy)
    replayed = tuning.run(workload.tree, costs, strategy, parse_admission(admission), budget)
    served, cache = replayed.replay.served, replayed.replay.cache
    input_len = workload.tree.input_len
    saved = tuning.saved_flops(costs, served.hits)
    ttft = None
    if prefill is not None:
        ttft = float(np.quantile(prefill.seconds(input_len, served.hits), 0.95))
    return Outcome(
        float(served.hits.sum() / input_len.sum()),
        saved / tuning.saved_flops(costs, input_len),
        saved / 1e15,
        count(cache, "KV_USED") / max(1, count(cache, "KV_MADE")),
        count(cache, "STATES_USED") / max(1, count(cache, "STATES_MADE")),
        1 - float(served.cached.mean()),
        replayed.switches[-1].alpha,
        ttft,
    )


def best_marconi(
    workload: Workload,
    costs: ModelCosts,
    total_bytes: float,
    prefill: PrefillTime | None = None,
    forms: Sequence[str] = MARCONI_FORMS,
) -> Outcome:
    """Marconi with the alpha and the form of recency that, in hindsight, save most."""
    outcomes = [
        measure(workload, costs, f"{form}:alpha={alpha:g}", "marconi", total_bytes, prefill)
        for form in forms
        for alpha in HINDSIGHT_ALPHAS
    ]
    return max(outcomes, key=lambda outcome: outcome.saved)


def infinite_bytes(workload: Workload, costs: ModelCosts, admission: str = "marconi") -> float:
    """Bytes that a cache without limit holds in the end."""
    strategy, rules = tuning.parse_strategy("lru"), parse_admission(admission)
    cache = tuning.run(workload.tree, costs, strategy, rules, None).replay.cache
    return costs.held_bytes(count(cache, "KV"), count(cache, "STATES"))

"""`sweep`: one trace under many policies, admissions and budgets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import Model
from sglang_hybrid.sim.admission import Admission, parse_admission
from sglang_hybrid.sim.budget import Budget, parse_bytes
from sglang_hybrid.sim.cells import BoundCell, Cell, FullKvCell, ReplayCell, UncachedCell, run_cell
from sglang_hybrid.sim.parallel import run_cells
from sglang_hybrid.sim.policy_spec import PRESETS, PolicySpec
from sglang_hybrid.sim.prefill_time import PrefillTime
from sglang_hybrid.sim.results import Bound, ReplayResult
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.tuning import Auto, Strategy, parse_strategy
from sglang_hybrid.sim.workload import DEFAULT_PREFILL_TIME, Concurrency, Workload

NONE, INFINITE = "none", "infinite"
SPECIAL = {
    NONE: "no cache at all; once, whatever the admissions and budgets",
    INFINITE: "a cache without limit; once for each admission",
}
"""What `sweep` takes for policies beside those of `parse_strategy`."""

DEFAULT_POLICIES = ("lru", "utility", "marconi", "auto")
DEFAULT_ADMISSIONS = ("shipped",)

T = TypeVar("T")


@dataclass(frozen=True)
class BudgetSize:
    """A budget as it was asked for: bytes, or a share of what an infinite cache holds."""

    text: str
    bytes: float | None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> BudgetSize:
        """`6GiB`, `12GB`, or `10%` of what the infinite cache holds at its end.

        Raises:
            ValueError: names the value and what is allowed.
        """
        text = text.strip()
        number = text[:-1].strip() if text.endswith("%") else None
        try:
            size = cls(text, None, float(number) / 100) if number else cls(text, parse_bytes(text))
        except ValueError:
            size = cls(text, 0.0)
        if not 0 < (size.share or size.bytes or 0.0) < float("inf"):
            raise ValueError(
                f"budget {text!r} is not allowed; allowed: a size above 0, such as 6GiB or 12GB, "
                "or a share such as 10% of what the infinite cache holds"
            )
        return size


class Grid:
    """Cells of a comparison; an infinite cache is only replayed if a share of it is wanted."""

    def __init__(self, load: Workload, admissions: Iterable[str]) -> None:
        self.load = load
        self.admissions = [parse_admission(text) for text in unique(admissions)]
        self._held: dict[str, float] = {}

    def budgets(
        self, admission: Admission, sizes: Sequence[BudgetSize], ratios: Sequence[float | None]
    ) -> list[Budget]:
        """Every size, divided in every ratio of state to KV bytes (None: not divided)."""
        totals = [
            size.share * self._infinite_bytes(admission)
            if size.share is not None
            else cast(float, size.bytes)
            for size in sizes
        ]
        return [
            Budget(total) if ratio is None else Budget.split(total, self.load.costs, ratio)
            for total in totals
            for ratio in ratios
        ]

    def replays(
        self,
        policies: Sequence[str],
        sizes: Sequence[BudgetSize],
        ratios: Sequence[float | None],
        seed: int = 0,
    ) -> list[Cell]:
        """Replays in the order admission, budget, ratio, policy; no cache first."""
        strategies = {
            text: seeded(parse_strategy(text), seed) for text in policies if text not in SPECIAL
        }
        cells: list[Cell] = [UncachedCell()] if NONE in policies else []
        for admission in self.admissions:
            cells += [
                ReplayCell(text, strategy, admission, budget)
                for budget in self.budgets(admission, sizes, ratios)
                for text, strategy in strategies.items()
            ]
            if INFINITE in policies:
                cells.append(infinite_cell(admission))
        return cells

    def bounds(self, sizes: Sequence[BudgetSize], ratios: Sequence[float | None]) -> list[Cell]:
        """Bounds in the order admission, budget, ratio; that over all of them last."""
        cells: list[Cell] = [
            BoundCell(admission, budget)
            for admission in self.admissions
            for budget in self.budgets(admission, sizes, ratios)
        ]
        return [*cells, FullKvCell()]

    def _infinite_bytes(self, admission: Admission) -> float:
        if admission.name not in self._held:
            result = cast(ReplayResult, run_cell(self.load, infinite_cell(admission)))
            self._held[admission.name] = self.load.costs.held_bytes(
                result.resident_kv_tokens, result.resident_states
            )
        return self._held[admission.name]


def sweep(
    trace: Trace | str,
    model: Model | ModelCosts | str,
    *,
    policies: Sequence[str] = DEFAULT_POLICIES,
    admissions: Sequence[str] = DEFAULT_ADMISSIONS,
    budgets: Sequence[str] = ("6GiB",),
    pools_ratio: float | Sequence[float] | None = None,
    concurrent: Concurrency | None = None,
    prefill_time: PrefillTime | str = DEFAULT_PREFILL_TIME,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> list[ReplayResult]:
    """Replay ``trace`` under every combination.

    Args:
        trace: or the path of one, or ``gen:NAME``.
        model: or the name of a preset, or the path of a ``config.json``.
        policies: as `tuning.parse_strategy` reads them, or a name in `SPECIAL`.
        admissions: as `admission.parse_admission` reads them.
        budgets: as `BudgetSize.parse` reads them.
        pools_ratio: state to KV bytes, SGLang's `--mamba-full-memory-ratio`: two pools
            instead of one budget; several are tried one after another.
        concurrent: None: each request ends before the next starts.
        prefill_time: as `prefill_time.parse_prefill_time` reads it.
        seed: of policies that draw samples and do not state a seed.
        workers: processes; None: as many as there are CPUs, or none for little work.
        progress: show a bar on stderr, if that is a terminal.

    Returns:
        Results in the order admission, budget, ratio, policy, whatever the workers.

    Raises:
        ValueError: names the value and what is allowed.
        CellError: names the replay that failed.
    """
    sizes = [BudgetSize.parse(text) for text in each(budgets)]
    policies = check_policies(policies)
    ratios = check_ratios(pools_ratio)
    admissions = each(admissions)
    for text in admissions:
        parse_admission(text)
    load = Workload.of(trace, model, prefill_time=prefill_time, concurrent=concurrent)
    cells = Grid(load, admissions).replays(policies, sizes, ratios, seed)
    return cast(list[ReplayResult], run_cells(load, cells, workers=workers, progress=progress))


def sweep_bounds(
    trace: Trace | str,
    model: Model | ModelCosts | str,
    *,
    admissions: Sequence[str] = DEFAULT_ADMISSIONS,
    budgets: Sequence[str] = ("6GiB",),
    pools_ratio: float | Sequence[float] | None = None,
    concurrent: Concurrency | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> list[Bound]:
    """What no policy exceeds, for every admission and budget, then for all (`full-kv`).

    Arguments and errors are those of `sweep`.
    """
    sizes = [BudgetSize.parse(text) for text in each(budgets)]
    ratios = check_ratios(pools_ratio)
    load = Workload.of(trace, model, concurrent=concurrent)
    cells = Grid(load, each(admissions)).bounds(sizes, ratios)
    return cast(list[Bound], run_cells(load, cells, workers=workers, progress=progress))


def infinite_cell(admission: Admission) -> ReplayCell:
    """A cache without limit. It evicts nothing, so that any policy will do."""
    return ReplayCell(INFINITE, PolicySpec("lru", INFINITE), admission, None)


def seeded(strategy: Strategy, seed: int) -> Strategy:
    """The same with ``seed`` for what draws samples and has no seed of its own."""

    def policy(spec: PolicySpec) -> PolicySpec:
        return spec if "seed=" in spec.name else replace(spec, seed=seed)

    if isinstance(strategy, PolicySpec):
        return policy(strategy)
    if isinstance(strategy, Auto):
        return replace(
            strategy, arms=tuple(replace(arm, policy=policy(arm.policy)) for arm in strategy.arms)
        )
    return strategy


def check_policies(policies: Sequence[str]) -> list[str]:
    """The policies, each once.

    Raises:
        ValueError: names the one that is not known.
    """
    policies = unique(policies)
    for text in policies:
        if text in ("bound", "full-kv"):
            raise ValueError(f"{text!r} is no policy but a bound; use sweep_bounds, or --bounds")
        name = text.split(":")[0]
        if name not in (*SPECIAL, "auto", *PRESETS):
            known = ["auto", *PRESETS, *SPECIAL]
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"unknown policy {name!r}; allowed: {', '.join(known)}{hint}")
        if text not in SPECIAL:
            parse_strategy(text)
    return policies


def check_ratios(ratio: float | Sequence[float] | None) -> list[float | None]:
    """The ratios as a list; [None] for one budget for all.

    Raises:
        ValueError: names the one that is not allowed.
    """
    if ratio is None:
        return [None]
    ratios = [ratio] if isinstance(ratio, int | float) else list(ratio)
    for value in ratios:
        if not 1e-6 <= value <= 1e6:
            raise ValueError(
                f"ratio {value!r} of state to KV bytes is not allowed; allowed: from 1e-6 to 1e6; "
                "SGLang's default is 0.9"
            )
    return list(unique(ratios))


def each(texts: Sequence[str]) -> list[str]:
    """Each once; a single text stands for itself."""
    return unique([texts] if isinstance(texts, str) else texts)


def unique(items: Iterable[T]) -> list[T]:
    """Each once, in the order of their first occurrence."""
    return list(dict.fromkeys(items))

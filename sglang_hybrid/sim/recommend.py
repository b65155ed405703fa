"""`recommend`: how to run the server for a trace, model and memory.

Only what `--cache-config` and SGLang's flags can express is recommended. Candidates are
compared on the first half of the trace and judged on the second, so that what happens to
suit some requests does not pass for a gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import Model
from sglang_hybrid.sim.admission import Admission, parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.candidates import (
    RATIOS,
    STOCK_ADMISSION,
    STOCK_POLICY,
    STOCK_RATIO,
    Candidate,
    admissions,
    policies,
)
from sglang_hybrid.sim.cells import Cell, ReplayCell
from sglang_hybrid.sim.parallel import run_cells
from sglang_hybrid.sim.prefill_time import PrefillTime
from sglang_hybrid.sim.results import HitFigures, ReplayResult
from sglang_hybrid.sim.sweep import BudgetSize, Grid, seeded, unique
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.tuning import parse_strategy, saved_flops
from sglang_hybrid.sim.workload import DEFAULT_PREFILL_TIME, Concurrency, Workload

FEW_REQUESTS = 200
"""With fewer the whole trace serves for choosing and for judging."""

_CLOSE = 0.005
"""What saves less than this share more is not worth another setting than the default."""

_FINALISTS = 3


@dataclass(frozen=True)
class Judged:
    """A replay, with its figures over the requests that did not choose it."""

    label: str
    ratio: float
    figures: HitFigures


@dataclass(frozen=True)
class Recommendation:
    """How to run the server, and what to expect of it.

    Attributes:
        policy, alpha, admission: for replays; `config` says the same to the server.
        ratio: of state to KV bytes.
        config: for `--cache-config`.
        judged_from: first request that counts in the figures; 0 if all of them do.
        expected, stock: figures of the recommendation, and of SGLang with its defaults.
        others: what else was replayed, to be compared with.
    """

    trace: str
    model: str
    memory_bytes: float
    requests: int
    judged_from: int
    policy: str
    alpha: float | None
    admission: str
    ratio: float
    state_slots: int
    kv_tokens: int
    config: dict[str, Any]
    expected: HitFigures
    stock: HitFigures
    others: tuple[Judged, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the server, without the value of `--cache-config`."""
        return (
            "--cache hybrid-marconi",
            f"--mamba-full-memory-ratio {self.ratio:g}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        result = asdict(self)
        result["flags"] = list(self.flags)
        for figures in (result["expected"], result["stock"], *_figures(result["others"])):
            figures["ttft"] = figures["ttft"]._asdict()
        return result


def recommend(
    trace: Trace | str,
    model: Model | ModelCosts | str,
    memory: str,
    *,
    concurrent: Concurrency | None = None,
    prefill_time: PrefillTime | str = DEFAULT_PREFILL_TIME,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Recommendation:
    """What to give the server for this trace, model and memory.

    Args:
        memory: for KV and states together, as `BudgetSize.parse` reads it.

    Other arguments and errors are those of `sweep`.
    """
    size = BudgetSize.parse(memory)
    load = Workload.of(trace, model, prefill_time=prefill_time, concurrent=concurrent)
    return recommend_for(load, size, seed=seed, workers=workers, progress=progress)


def recommend_for(
    load: Workload,
    memory: BudgetSize,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Recommendation:
    """The same for a compiled trace.

    Raises:
        ValueError: memory that does not hold a state beside the KV of a token.
    """
    grid = Grid(load, [STOCK_ADMISSION])
    total = grid.budgets(grid.admissions[0], [memory], [None])[0].total_bytes
    return _Search(load, total, seed, workers, progress).result()


class _Search:
    """The replays behind a recommendation; each is made once."""

    def __init__(
        self,
        load: Workload,
        total_bytes: float,
        seed: int,
        workers: int | None,
        progress: bool,
    ) -> None:
        self.load, self.total_bytes, self.seed = load, total_bytes, seed
        self.options: dict[str, Any] = {"workers": workers, "progress": progress}
        self.half = len(load) // 2 if len(load) >= FEW_REQUESTS else 0
        self.ratios = [ratio for ratio in RATIOS if self._fits(ratio)]
        if not self.ratios:
            raise ValueError(
                f"memory of {total_bytes:.0f} bytes is not allowed; allowed: enough for a state "
                f"({load.costs.state_bytes:.0f} bytes) and as much for KV; give more memory"
            )

    def result(self) -> Recommendation:
        """Choose policy and ratio first, then the admission for the best few of them."""
        admission = admissions()[0]
        first = [
            Candidate(policy, {**config, **admission[0]}, admission[1], ratio)
            for policy, config in policies()
            for ratio in self.ratios
        ]
        ranked = self._ranked(first)
        finalists = [candidate for candidate, _ in ranked[:_FINALISTS]]
        variants = [
            Candidate(one.policy, {**one.config, **config}, text, one.ratio)
            for one in finalists
            for config, text in admissions()[1:]
        ]
        ranked = [*ranked, *self._ranked(variants)]
        most = max(self._saved(result) for _, result in ranked)
        good = [pair for pair in ranked if self._saved(pair[1]) >= (1 - _CLOSE) * most]
        chosen, result = min(good, key=lambda pair: pair[0].distance_from_default)
        return self._recommendation(chosen, result)

    def _recommendation(self, chosen: Candidate, result: ReplayResult) -> Recommendation:
        stock = self._stock()
        budget = self._budget(chosen.ratio)
        assert budget.state_slots is not None and budget.kv_tokens is not None
        return Recommendation(
            trace=self.load.trace,
            model=self.load.model,
            memory_bytes=self.total_bytes,
            requests=len(self.load),
            judged_from=self.half,
            policy=chosen.policy,
            alpha=result.alpha,
            admission=chosen.admission,
            ratio=chosen.ratio,
            state_slots=budget.state_slots,
            kv_tokens=budget.kv_tokens,
            config=chosen.config,
            expected=self._figures(result),
            stock=self._figures(stock[STOCK_RATIO]),
            others=(self._stock_at_best_ratio(stock),),
        )

    def _stock_at_best_ratio(self, stock: dict[float, ReplayResult]) -> Judged:
        """What part of the gain is the ratio's."""
        ratio = max(stock, key=lambda ratio: (self._saved(stock[ratio]), ratio == STOCK_RATIO))
        return Judged("stock SGLang, best ratio", ratio, self._figures(stock[ratio]))

    def _stock(self) -> dict[float, ReplayResult]:
        # Judged at the default ratio even if not a state fits then: that is what happens.
        ratios = unique([STOCK_RATIO, *self.ratios])
        admission = parse_admission(STOCK_ADMISSION)
        cells = [self._cell(STOCK_POLICY, admission, ratio) for ratio in ratios]
        return dict(zip(ratios, self._run(cells), strict=True))

    def _ranked(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, ReplayResult]]:
        """The candidates with their replays, those that save most first."""
        results = self._run(
            [
                self._cell(one.policy, parse_admission(one.admission), one.ratio)
                for one in candidates
            ]
        )
        pairs = list(zip(candidates, results, strict=True))
        return sorted(pairs, key=lambda pair: -self._saved(pair[1]))

    def _run(self, cells: Sequence[Cell]) -> list[ReplayResult]:
        return cast(list[ReplayResult], run_cells(self.load, cells, **self.options))

    def _cell(self, policy: str, admission: Admission, ratio: float) -> ReplayCell:
        strategy = seeded(parse_strategy(policy), self.seed)
        return ReplayCell(policy, strategy, admission, self._budget(ratio))

    def _budget(self, ratio: float) -> Budget:
        return Budget.split(self.total_bytes, self.load.costs, ratio)

    def _fits(self, ratio: float) -> bool:
        budget = self._budget(ratio)
        return bool(budget.state_slots and budget.kv_tokens)

    def _saved(self, result: ReplayResult) -> float:
        """FLOPs saved, of the requests that choose."""
        stop = self.half or len(self.load)
        return saved_flops(self.load.costs, result.hits[:stop])

    def _figures(self, result: ReplayResult) -> HitFigures:
        return result.figures_from(self.load, self.half)


def _figures(others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [other["figures"] for other in others]

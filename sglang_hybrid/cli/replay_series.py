"""Rows of a comparison as series for plots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglang_hybrid.sim.results import Bound, ReplayResult, Row

SHARES = {"token_hit_rate": "Token hit rate", "flops_saved_share": "FLOPs saved, share"}
"""Figures that are plotted, with their titles."""

_ALPHA = re.compile(r":alpha=([0-9.eE+-]+)")
_MANY_ALPHAS = 3
_MOST_GAINS = 6
_NO_POLICIES = ("none", "infinite", "offline", "lru")
"""What has no gain over LRU to be shown: LRU itself, and what cannot be had."""


@dataclass(frozen=True)
class Axis:
    """What a figure is plotted against."""

    label: str
    is_logarithmic: bool
    is_ratio: bool = False

    def of(self, row: Row) -> float:
        if self.is_ratio:
            return row.ratio or 0.0
        return (row.budget_bytes or 0.0) / 2**30


@dataclass
class Series:
    """A line of a plot."""

    policy: str
    admission: str
    is_bound: bool = False
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


def axis_of(rows: Sequence[Row]) -> Axis:
    """Ratios if they are all that differs, else budgets."""
    ratios = {row.ratio for row in rows if row.ratio is not None}
    budgets = {row.budget_bytes for row in rows if row.budget_bytes is not None}
    if len(ratios) > 1 and len(budgets) == 1:
        return Axis("state bytes / KV bytes", True, is_ratio=True)
    return Axis("budget in GiB", max(budgets, default=0) > 8 * min(budgets, default=0))


def series_of(rows: Sequence[Row], share: str, axis: Axis) -> list[Series]:
    """A line for each policy and admission that has a budget.

    Of many alphas of one policy, and of several ratios at one budget, the best is shown.
    """
    families = _families(rows)
    lines: dict[tuple[str, str], dict[float, float]] = {}
    bounds = {row.policy for row in rows if isinstance(row, Bound)}
    for row in rows:
        if row.budget_bytes is None or row.admission is None:
            continue
        points = lines.setdefault((families.get(row.policy, row.policy), row.admission), {})
        x = axis.of(row)
        points[x] = max(points.get(x, 0.0), getattr(row, share))
    return [
        Series(
            policy, admission, policy in bounds, sorted(points), [points[x] for x in sorted(points)]
        )
        for (policy, admission), points in lines.items()
    ]


def limits(rows: Sequence[Row], share: str) -> dict[str, float]:
    """Rows without a budget, but for one without a cache."""
    return {
        f"{row.policy}, {row.admission}" if row.admission else row.policy: getattr(row, share)
        for row in rows
        if row.budget_bytes is None and row.policy != "none"
    }


def alpha_series(rows: Sequence[Row]) -> list[Series]:
    """FLOPs saved against alpha, where several were replayed; one line a budget."""
    lines: dict[tuple[str, str], Series] = {}
    for row in rows:
        alpha = _alpha(row.policy)
        if alpha is None or row.admission is None or row.budget_bytes is None:
            continue
        size = f"{row.budget_bytes / 2**30:.3g} GiB"
        if row.ratio is not None:
            size += f", ratio {row.ratio:g}"
        name = f"{_ALPHA.sub('', row.policy)}, {size}"
        line = lines.setdefault((name, row.admission), Series(name, row.admission))
        line.x.append(alpha)
        line.y.append(row.flops_saved_share)
    return [_sorted(line) for line in lines.values() if len(set(line.x)) > 1]


def gains_over_lru(rows: Sequence[Row]) -> tuple[str, dict[str, dict[str, float]]]:
    """Where, and by policy and length, what is saved beyond LRU (shares of all FLOPs there).

    At the budget in the middle of those at which LRU was replayed.
    """
    results = [row for row in rows if isinstance(row, ReplayResult)]
    bases = [row for row in results if row.policy == "lru" and row.budget_bytes is not None]
    if not bases or len(bases[0].by_length) == 1:
        return "", {}
    base = sorted(bases, key=lambda row: row.budget_bytes or 0.0)[(len(bases) - 1) // 2]
    place = (base.admission, base.budget_bytes, base.ratio)
    families = _families(rows)
    best: dict[str, ReplayResult] = {}
    for row in sorted(results, key=lambda row: -row.flops_saved):
        is_there = (row.admission, row.budget_bytes, row.ratio) == place
        if is_there and row.policy not in _NO_POLICIES:
            best.setdefault(families.get(row.policy, row.policy), row)
    gains = {
        policy: {
            _length(mine.from_tokens, mine.to_tokens): mine.flops_saved_share
            - theirs.flops_saved_share
            for mine, theirs in zip(row.by_length, base.by_length, strict=True)
        }
        for policy, row in list(best.items())[:_MOST_GAINS]
    }
    return f"{base.admission}, {(base.budget_bytes or 0.0) / 2**30:.3g} GiB", gains


def _families(rows: Sequence[Row]) -> dict[str, str]:
    """Policies that differ in nothing but alpha from several others: one name for all."""
    weighed = [row.policy for row in rows if _alpha(row.policy) is not None]
    names = {policy: _ALPHA.sub("", policy) for policy in weighed}
    members = Counter(names.values())
    return {
        policy: f"{name}, best alpha"
        for policy, name in names.items()
        if members[name] >= _MANY_ALPHAS
    }


def _alpha(policy: str) -> float | None:
    found = _ALPHA.search(policy)
    try:
        return float(found.group(1)) if found else None
    except ValueError:
        return None


def _sorted(line: Series) -> Series:
    pairs = sorted(zip(line.x, line.y, strict=True))
    return replace(line, x=[x for x, _ in pairs], y=[y for _, y in pairs])


def _length(start: int, stop: int | None) -> str:
    def short(tokens: int) -> str:
        return f"{tokens // 1024}k" if tokens else "0"

    return f"{short(start)} to {short(stop)}" if stop else f"from {short(start)}"

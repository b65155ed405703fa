"""Tables of a comparison: for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import pages
from bench.serving import measured
from bench.serving.arms import NAMES
from bench.serving.choice import KNOWN as WORKLOADS
from bench.serving.spread import Difference, paired
from bench.serving.store import DONE

NONE = "none"


@dataclass(frozen=True)
class Figure:
    """One column: how it is printed, and how two arms are compared."""

    key: str
    title: str
    unit: str
    ratio: bool = True

    def show(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.1f}"
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    def change(self, value: float) -> str:
        return f"{100 * value:+.1f}"


FIGURES = (
    Figure("hit_rate", "tokens hit", "%", ratio=False),
    Figure("ttft_p50", "TTFT P50", "s"),
    Figure("ttft_p95", "P95", "s"),
    Figure("ttft_p99", "P99", "s"),
    Figure("ttft_p95_warm", "P95 warm", "s"),
    Figure("requests_per_s", "requests", "1/s"),
    Figure("tokens_per_s", "tokens", "1/s"),
)


@dataclass(frozen=True)
class Comparison:
    """Finished runs, ready to be shown.

    Attributes:
        values: of a figure, by workload, arm and seed.
        titles: of the arms, by name.
        references: arms that all others are compared with.
        rates: of each workload, as the store has them.
        problems: what did not run or is doubtful, as lines.
    """

    values: Mapping[str, Mapping[str, Mapping[str, Mapping[int, float]]]]
    titles: Mapping[str, str]
    references: Sequence[str]
    rates: Mapping[str, Mapping[str, Any]]
    confidence: float
    problems: Sequence[str] = field(default=())

    def arms(self, workload: str) -> list[str]:
        """That finished a run of ``workload``, in the order of `NAMES`."""
        return [name for name in NAMES if name in self.values[workload]]

    def difference(self, workload: str, arm: str, reference: str, of: Figure) -> Difference | None:
        arms = self.values[workload]
        if arm == reference or arm not in arms or reference not in arms:
            return None
        own, other = arms[arm][of.key], arms[reference][of.key]
        return paired(own, other, ratio=of.ratio, confidence=self.confidence)


def compare(
    results: Iterable[Mapping[str, Any]],
    titles: Mapping[str, str],
    references: Sequence[str],
    rates: Mapping[str, Mapping[str, Any]],
    confidence: float,
    left_out: Mapping[str, str],
) -> Comparison:
    """Sort results by workload, arm and seed; failures and doubts become problems."""
    results = list(results)
    finished = [result for result in results if result["state"] == DONE]
    values: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    for result in finished:
        of_arm = values.setdefault(result["workload"], {}).setdefault(result["arm"], {})
        for key, value in measured.figures(result).items():
            of_arm.setdefault(key, {})[result["seed"]] = value
    order = [name for name in WORKLOADS if name in values]
    problems = [f"{name} left out: {reason}" for name, reason in left_out.items()]
    for result in results:
        if result["state"] != DONE:
            place = f"{result['workload']}, {result['arm']}, seed {result['seed']}"
            problems.append(f"{place} FAILED: {result['error']}")
        elif result["arm"] == "stock-rust" and "Rust" not in (result["tree_core"] or ""):
            problems.append(f"{result['arm']} ran with {result['tree_core']}, not the Rust core")
    problems += [f"hit rates differ: {line}" for line in measured.disagreements(finished)]
    return Comparison(
        {name: values[name] for name in order},
        titles,
        references,
        rates,
        confidence,
        list(dict.fromkeys(problems)),
    )


def value_rows(comparison: Comparison, workload: str) -> list[list[str]]:
    """One row per arm: the mean over seeds, and least and greatest."""
    rows = []
    for arm in comparison.arms(workload):
        values = comparison.values[workload][arm]
        cells = [_with_range(figure, list(values[figure.key].values())) for figure in FIGURES]
        rows.append([comparison.titles.get(arm, arm), str(len(values["hit_rate"])), *cells])
    return rows


def difference_rows(comparison: Comparison, workload: str) -> list[list[str]]:
    """One row per arm and reference; what lies inside of the spread is `NONE`."""
    rows = []
    for number, reference in enumerate(comparison.references):
        for arm in comparison.arms(workload):
            found = [comparison.difference(workload, arm, reference, of) for of in FIGURES]
            if found[0] is None or arm in comparison.references[:number]:
                continue  # two references are compared once
            names = [comparison.titles.get(name, name) for name in (arm, reference)]
            cells = [_stated(of, one) for of, one in zip(FIGURES, found, strict=True)]
            rows.append([*names, str(found[0].seeds), *cells])
    return rows


def value_header() -> list[str]:
    return ["arm", "seeds", *(f"{figure.title}, {figure.unit}" for figure in FIGURES)]


def difference_header() -> list[str]:
    units = ["points" if not figure.ratio else "%" for figure in FIGURES]
    titles = [f"{figure.title}, {unit}" for figure, unit in zip(FIGURES, units, strict=True)]
    return ["arm", "against", "seeds", *titles]


def print_comparison(comparison: Comparison, console: Console) -> None:
    for workload in comparison.values:
        title = f"{workload} ({_rate(comparison, workload)})"
        _print(console, title, value_header(), value_rows(comparison, workload))
        rows = difference_rows(comparison, workload)
        if rows:
            _print(console, f"{workload}: differences", difference_header(), rows)
    console.print(rule(comparison.confidence))
    for problem in comparison.problems:
        console.print(f"[bold red]![/bold red] {escape(problem)}", highlight=False)


def markdown(comparison: Comparison) -> str:
    """Both tables of every workload, the rule, and what did not run."""
    parts = []
    for workload in comparison.values:
        parts.append(f"**{workload}**, {_rate(comparison, workload)}")
        parts.append(pages.table(value_header(), value_rows(comparison, workload)))
        rows = difference_rows(comparison, workload)
        if rows:
            parts.append(pages.table(difference_header(), rows))
    parts.append(rule(comparison.confidence))
    if comparison.problems:
        lines = [problem.replace("\n", " / ") for problem in comparison.problems]
        parts.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All figures and all differences, stated or not."""
    differences = [
        {
            "workload": workload,
            "arm": arm,
            "reference": reference,
            "figure": of.key,
            "ratio": of.ratio,
            **{k: _finite(v) for k, v in asdict(found).items()},
        }
        for workload in comparison.values
        for reference in comparison.references
        for arm in comparison.arms(workload)
        for of in FIGURES
        if (found := comparison.difference(workload, arm, reference, of)) is not None
    ]
    return {
        "rule": rule(comparison.confidence),
        "rates": comparison.rates,
        "values": comparison.values,
        "differences": differences,
        "problems": list(comparison.problems),
    }


def rule(confidence: float) -> str:
    return (
        "Values: mean over seeds (least to greatest). Differences are paired by seed: the mean of "
        "the differences of hit rates, in points, or of the logarithms of ratios, shown in "
        f'percent; "{NONE}" where the {100 * confidence:g} % interval of Student\'s t for that '
        "mean holds zero, and wherever there are fewer than two seeds."
    )


def _stated(figure: Figure, difference: Difference | None) -> str:
    if difference is None or not difference.stated:
        return NONE
    return figure.change(difference.mean)


def _with_range(figure: Figure, values: Sequence[float]) -> str:
    mean = figure.show(fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ({figure.show(min(values))} to {figure.show(max(values))})"


def _rate(comparison: Comparison, workload: str) -> str:
    found = comparison.rates.get(workload)
    if not found:
        return "rate not known"
    text = f"{found['rate']:.3g} arrivals/s"
    if "closed_loop_per_s" in found:
        text += f", of {found['closed_loop_per_s']:.3g} in a closed loop of {found['arm']}"
    return text


def _finite(value: Any) -> Any:
    return None if value in (float("inf"), float("-inf")) else value


def _print(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]):
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)

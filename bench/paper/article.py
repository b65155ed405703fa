"""The article's two workloads, on which the weight of efficiency pulls in opposite directions."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.pages import percent, table
from bench.paper.plots import new_figure, save
from bench.paper.setting import PAPER_7B
from bench.replays import Outcome, Workload, load_workload, measure

SEEDS = range(5)
ALPHAS = (*(0.25 * i for i in range(17)), 6.0, 8.0, 12.0, 16.0)
BUDGET = 6 * 2**30
WIDER_GIB = (6, 9, 12, 15, 18)
RECENCIES = {"linear": "marconi:bucket_width=0", "hyperbolic": "marconi-hyperbolic"}
STRATEGIES = {
    "SGLang+": ("sglang+", "marconi"),
    "Marconi, tuned": ("marconi:alpha=tuned:bucket_width=0", "marconi"),
    "Marconi, tuned, hyperbolic": ("marconi-hyperbolic:alpha=tuned", "marconi"),
    "`utility`": ("utility", "marconi"),
    "`auto`": ("auto", "marconi"),
    "`auto` + ghost forks": ("auto", "ghost"),
    "offline": ("offline", "marconi"),
}
PUBLISHED = {
    "A": {0.0: (0.681, 43.1), 1.0: (0.742, 47.1), 4.0: (0.780, 49.6)},
    "B": {0.0: (0.289, 7.3), 1.0: (0.150, 3.9), 4.0: (0.182, 4.8)},
}


def run(traces: Path | None) -> dict[str, Any]:
    """Token hit rate and PFLOPs saved, one value per seed."""
    result: dict[str, Any] = {"alphas": ALPHAS, "budget": BUDGET, "traces": {}}
    for name in ("A", "B"):
        workloads = [load_workload(f"gen:article-{name.lower()}?seed={seed}") for seed in SEEDS]
        curves: dict[str, Any] = {
            recency: [
                _summary([_marconi(workload, policy, alpha) for workload in workloads])
                for alpha in ALPHAS
            ]
            for recency, policy in RECENCIES.items()
        }
        strategies = {
            label: _summary([measure(w, PAPER_7B, *system, BUDGET) for w in workloads])
            for label, system in STRATEGIES.items()
        }
        infinite = _summary([measure(w, PAPER_7B, "lru", "marconi", None) for w in workloads])
        result["traces"][name] = {
            "budgets": [_budget(workloads, gib) for gib in WIDER_GIB],
            "curves": curves,
            "strategies": strategies,
            "infinite": infinite,
        }
    return result


def _marconi(workload: Workload, policy: str, alpha: float, size: float = BUDGET) -> Outcome:
    return measure(workload, PAPER_7B, f"{policy}:alpha={alpha}", "marconi", size)


def _budget(workloads: list[Workload], gib: int) -> dict[str, Any]:
    """The published alphas in another budget."""
    cells = {
        f"{recency}, {alpha:g}": _summary(
            [_marconi(workload, policy, alpha, gib * 2**30) for workload in workloads]
        )
        for recency, policy in RECENCIES.items()
        for alpha in PUBLISHED["A"]
    }
    cells["auto"] = _summary(
        [measure(w, PAPER_7B, "auto", "ghost", gib * 2**30) for w in workloads]
    )
    return {"gib": gib, "cells": cells}


def _summary(outcomes: list[Outcome]) -> dict[str, list[float]]:
    return {
        "hit_rate": [round(outcome.hit_rate, 5) for outcome in outcomes],
        "pflops": [round(outcome.pflops, 3) for outcome in outcomes],
        "alpha": [outcome.alpha for outcome in outcomes],
    }


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "article": _alphas(result),
        "article-strategies": _strategies(result),
        "article-budgets": _budgets(result),
    }


def _alphas(result: dict[str, Any]) -> str:
    rows = []
    for name, trace in result["traces"].items():
        for alpha in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
            at = result["alphas"].index(alpha)
            published = PUBLISHED[name].get(alpha)
            rows.append(
                [name, f"{alpha:g}"]
                + [_cell(trace["curves"][recency][at]) for recency in RECENCIES]
                + [f"{percent(published[0])}, {published[1]} PF" if published else ""]
            )
    return table(["trace", "alpha", "linear recency", "hyperbolic recency", "the article"], rows)


def _strategies(result: dict[str, Any]) -> str:
    rows = []
    for name, trace in result["traces"].items():
        curve = trace["curves"]["linear"]
        best = max(curve, key=lambda point: statistics.mean(point["pflops"]))
        alpha = result["alphas"][curve.index(best)]
        rows.append([name, "LRU (alpha = 0)", _cell(curve[0]), ""])
        rows.append([name, f"best fixed alpha ({alpha:g})", _cell(best), ""])
        for label, summary in trace["strategies"].items():
            tuned = ", ".join(f"{value:g}" for value in summary["alpha"])
            rows.append([name, label, _cell(summary), tuned if "tuned" in label else ""])
        rows.append([name, "cache without limit", _cell(trace["infinite"]), ""])
    return table(["trace", "strategy", "hit rate, PFLOPs saved", "alpha chosen, per seed"], rows)


def _budgets(result: dict[str, Any]) -> str:
    rows = []
    for name, trace in result["traces"].items():
        for budget in trace["budgets"]:
            rates = [statistics.mean(cell["hit_rate"]) for cell in budget["cells"].values()]
            rows.append([name, f"{budget['gib']} GiB", *map(percent, rates)])
        published = [percent(rate) for rate, _ in PUBLISHED[name].values()]
        rows.append([name, "the article, 6 GiB", *published, *[""] * (len(published) + 1)])
    cells = next(iter(result["traces"].values()))["budgets"][0]["cells"]
    return table(["trace", "budget", *cells], rows)


def _cell(summary: dict[str, list[float]]) -> str:
    rates, pflops = summary["hit_rate"], summary["pflops"]
    spread = 100 * statistics.pstdev(rates)
    mean = 100 * statistics.mean(rates)
    return f"{mean:.1f} ± {spread:.1f} %, {statistics.mean(pflops):.1f} PF"


def plot(result: dict[str, Any], folder: Path) -> None:
    """Relative to alpha = 0: the levels depend on details that the article does not tell."""
    figure, axes = new_figure(2)
    for axis, (name, trace) in zip(axes, result["traces"].items(), strict=True):
        base = statistics.mean(trace["curves"]["linear"][0]["hit_rate"])
        for recency, colour in (("linear", "#2a6f97"), ("hyperbolic", "#e07a1f")):
            rates = [point["hit_rate"] for point in trace["curves"][recency]]
            middle = [statistics.mean(values) / base for values in rates]
            axis.plot(result["alphas"], middle, color=colour, label=f"Marconi, {recency} recency")
            low, high = ([pick(v) / base for v in rates] for pick in (min, max))
            axis.fill_between(result["alphas"], low, high, color=colour, alpha=0.15)
        for label, style in (("`utility`", ":"), ("`auto`", "--")):
            mean = statistics.mean(trace["strategies"][label]["hit_rate"])
            axis.axhline(mean / base, color="#444444", linestyle=style, label=label.strip("`"))
        published = PUBLISHED[name]
        ratios = [rate / published[0.0][0] for rate, _ in published.values()]
        axis.plot(list(published), ratios, "kx", label="the article")
        axis.set(title=f"trace {name}, 6 GiB", xlabel="alpha", xlim=(-0.1, 8))
        axis.set(ylabel="token hit rate over that of alpha = 0")
    save(figure, axes, folder / "paper-article.png", columns=5)

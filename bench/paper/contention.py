"""Gain over LRU by budget: the paper finds most at medium contention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pages import change, gigabytes, percent, table
from bench.paper.plots import COLOURS, new_figure, save
from bench.paper.setting import BEST, PAPER_7B, SYSTEMS
from bench.replays import TRACES, best_marconi, infinite_bytes, load_workload, measure, trace_path

SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_LIMIT = 4000
_NAMES = ("SGLang+", "LRU", "Marconi", "utility", "auto")


def run(traces: Path | None) -> dict[str, Any]:
    """Whole traces where comparing every candidate is quick enough, else their start."""
    assert traces is not None
    result: dict[str, Any] = {"shares": SHARES, "traces": {}}
    for name in TRACES:
        workload = load_workload(trace_path(traces, name), limit=_LIMIT)
        full = infinite_bytes(workload, PAPER_7B)
        cells = []
        for share in SHARES:
            size = share * full
            rates = {
                system: measure(workload, PAPER_7B, *SYSTEMS[system], size).as_json()["hit_rate"]
                for system in _NAMES
            }
            hindsight = best_marconi(workload, PAPER_7B, size)
            rates[BEST] = hindsight.as_json()["hit_rate"]
            cells.append({"bytes": size, "rates": rates, "alpha": hindsight.alpha})
        result["traces"][name] = {"requests": len(workload), "cells": cells}
    return result


def tables(result: dict[str, Any]) -> dict[str, str]:
    rows = []
    for trace, entry in result["traces"].items():
        for name in (BEST, "auto"):
            gains = [_gain(cell["rates"], name, "SGLang+") for cell in entry["cells"]]
            shown = [change(gain) if gain else "-" for gain in gains]
            peak = max(range(len(gains)), key=lambda i: gains[i] or 0)
            place = f"{percent(result['shares'][peak], 0)}, "
            rows.append([trace, name, *shown, place + gigabytes(entry["cells"][peak]["bytes"])])
    header = ["trace", "system", *(percent(share, 0) for share in result["shares"]), "peak"]
    return {"contention": table(header, rows)}


def _gain(rates: dict[str, float], ours: str, theirs: str) -> float | None:
    return rates[ours] / rates[theirs] if rates[theirs] > 0 else None


def plot(result: dict[str, Any], folder: Path) -> None:
    figure, axes = new_figure(len(result["traces"]), rows=2)
    shares = [100 * share for share in result["shares"]]
    for axis, (trace, entry) in zip(axes, result["traces"].items(), strict=True):
        for name in ("LRU", "Marconi", BEST, "utility", "auto"):
            gains = [
                100 * (cell["rates"][name] - cell["rates"]["SGLang+"]) for cell in entry["cells"]
            ]
            axis.plot(shares, gains, marker="o", markersize=3, color=COLOURS[name], label=name)
        axis.axhline(0, color=COLOURS["SGLang+"], linewidth=1, label="SGLang+")
        axis.set(title=trace, xlabel="budget, % of the cache without limit")
        axis.set(xscale="log", ylabel="points of token hit rate over SGLang+")
    save(figure, axes, folder / "paper-contention.png", columns=6)

"""How the gain depends on how fast sessions arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pages import change, gigabytes, percent, table
from bench.paper.plots import COLOURS, new_figure, save
from bench.paper.setting import BEST, PAPER_7B, SYSTEMS
from bench.replays import best_marconi, infinite_bytes, load_workload, measure, trace_path

RATES = {
    "taubench": ("lognormal:5:1.2", (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)),
    "miniswe": ("recorded", (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)),
}
"""Gaps between the turns of a session, and sessions per second."""

_SHARE = 0.1
_NAMES = ("vLLM+", "SGLang+", "LRU", "Marconi", "utility", "auto")


def run(traces: Path | None) -> dict[str, Any]:
    """The same sessions, started as a Poisson process of another rate, in the same bytes."""
    assert traces is not None
    result: dict[str, Any] = {"share": _SHARE, "traces": {}}
    for name, (gap, rates) in RATES.items():
        cells = []
        for rate in rates:
            arrival = f"poisson:{rate:g}"
            workload = load_workload(trace_path(traces, name), arrival=arrival, gap=gap)
            size = _SHARE * infinite_bytes(workload, PAPER_7B)
            hits = {
                system: measure(workload, PAPER_7B, *SYSTEMS[system], size).as_json()["hit_rate"]
                for system in _NAMES
            }
            hindsight = best_marconi(workload, PAPER_7B, size)
            hits[BEST] = hindsight.as_json()["hit_rate"]
            cells.append({"rate": rate, "bytes": size, "rates": hits})
        result["traces"][name] = {"gap": gap, "cells": cells}
    return result


def tables(result: dict[str, Any]) -> dict[str, str]:
    names = ["vLLM+", "SGLang+", "LRU", "Marconi", BEST, "utility", "auto"]
    rows = []
    for trace, entry in result["traces"].items():
        for cell in entry["cells"]:
            rates = cell["rates"]
            row = [trace, gigabytes(cell["bytes"]), f"{cell['rate']:g}/s"]
            row += [percent(rates[name]) for name in names]
            row += [change(rates[name] / rates["SGLang+"]) for name in (BEST, "auto")]
            rows.append(row)
    header = ["trace", "bytes", "sessions", *names, f"{BEST} over SGLang+", "auto over SGLang+"]
    return {"arrivals": table(header, rows)}


def plot(result: dict[str, Any], folder: Path) -> None:
    figure, axes = new_figure(2)
    for axis, (trace, entry) in zip(axes, result["traces"].items(), strict=True):
        for name in (*_NAMES, BEST):
            rates = [cell["rate"] for cell in entry["cells"]]
            hits = [100 * cell["rates"][name] for cell in entry["cells"]]
            axis.plot(rates, hits, marker="o", markersize=3, color=COLOURS[name], label=name)
        axis.set(title=trace, xscale="log", xlabel="sessions per second")
        axis.set(ylabel="token hit rate, %", ylim=(0, None))
    save(figure, axes, folder / "paper-arrivals.png", columns=7)

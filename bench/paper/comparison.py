"""Marconi beside checkpoints per block (vLLM+) and both readings of SGLang+."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.pages import change, gigabytes, percent, table
from bench.paper.plots import COLOURS, new_figure, save
from bench.paper.setting import BEST, JAMBA, PAPER_7B, SAMPLES, SYSTEMS, jamba_prefill, load_sample
from bench.replays import best_marconi, infinite_bytes, measure

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Budgets, as shares of what a cache without limit holds with Marconi's admission."""

LEAVES_ONLY = "vLLM+, leaves only"
OURS = ("Marconi", BEST, "utility", "auto")
_MODELS = {"paper-7b": (PAPER_7B, None), "jamba-1.5-mini": (JAMBA, jamba_prefill())}


def run(traces: Path | None) -> dict[str, Any]:
    """Per model and trace, what every system reaches at every budget."""
    assert traces is not None
    result: dict[str, Any] = {"shares": SHARES, "models": {name: {} for name in _MODELS}}
    for sample in SAMPLES:
        workload = load_sample(traces, sample)
        for model, (costs, prefill) in _MODELS.items():
            full = infinite_bytes(workload, costs)
            cells = []
            for share in SHARES:
                size = share * full
                systems = {
                    name: measure(
                        workload, costs, system.policy, sample.admission(system), size, prefill
                    ).as_json()
                    for name, system in SYSTEMS.items()
                    if name != LEAVES_ONLY or costs is PAPER_7B  # it is the slowest
                }
                hindsight = best_marconi(workload, costs, size, prefill)
                systems[BEST] = hindsight.as_json()
                cells.append({"share": share, "bytes": size, "systems": systems})
            result["models"][model][sample.trace] = {"requests": len(workload), "cells": cells}
    return result


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "hit-rates": _rates(result["models"]["paper-7b"]),
        "gains": _gains(result["models"]["paper-7b"], "hit_rate"),
        "gains-jamba": _gains(result["models"]["jamba-1.5-mini"], "hit_rate"),
        "ttft": _ttft(result["models"]["jamba-1.5-mini"]),
    }


def _rates(traces: dict[str, Any]) -> str:
    names = ["vLLM+", LEAVES_ONLY, "SGLang+", "LRU", "Marconi", BEST, "utility", "auto"]
    names.append("offline")
    rows = []
    for trace, entry in traces.items():
        for cell in entry["cells"]:
            rates = [percent(cell["systems"][name]["hit_rate"]) for name in names]
            where = [trace, percent(cell["share"], 0), gigabytes(cell["bytes"])]
            rows.append(where + rates)
    return table(["trace", "budget", "bytes", *names], rows)


def _ratios(cells: Iterable[dict[str, Any]], ours: str, theirs: str, value: str) -> list[float]:
    """Of the budgets at which the other system reaches anything."""
    return [
        cell["systems"][ours][value] / cell["systems"][theirs][value]
        for cell in cells
        if cell["systems"][theirs][value] > 0
    ]


def _gains(traces: dict[str, Any], value: str) -> str:
    """Mean and largest ratio over per-block checkpoints; mean and P95 gain over the others."""
    measured = next(iter(traces.values()))["cells"][0]["systems"]
    blocks_of = [name for name in ("vLLM+", LEAVES_ONLY) if name in measured]
    rows = []
    for trace, entry in traces.items():
        for ours in OURS:
            row = [trace, ours]
            for theirs in blocks_of:
                ratios = _ratios(entry["cells"], ours, theirs, value)
                row.append(f"{np.mean(ratios):.1f}x, {max(ratios):.1f}x")
            for theirs in ("SGLang+", "LRU"):
                ratios = _ratios(entry["cells"], ours, theirs, value)
                row.append(f"{change(float(np.mean(ratios)))}, {change(_p95(ratios))}")
            rows.append(row)
    header = ["trace", "system", *(f"{name}: mean, most" for name in blocks_of)]
    header += ["SGLang+: mean, P95", "LRU: mean, P95"]
    return table(header, rows)


def _p95(values: list[float]) -> float:
    return float(np.quantile(values, 0.95))


def _ttft(traces: dict[str, Any]) -> str:
    names = ["vLLM+", "SGLang+", "LRU", "Marconi", "auto"]
    rows = []
    for trace, entry in traces.items():
        for cell in entry["cells"]:
            times = {name: cell["systems"][name]["ttft_p95"] for name in names}
            row = [trace, percent(cell["share"], 0)]
            row += [f"{1000 * times[name]:,.0f} ms" for name in names]
            row += [change(times[name] / times["vLLM+"]) for name in ("Marconi", "auto")]
            rows.append(row)
    header = ["trace", "budget", *names, "Marconi against vLLM+", "auto against vLLM+"]
    return table(header, rows)


def plot(result: dict[str, Any], folder: Path) -> None:
    traces = result["models"]["paper-7b"]
    figure, axes = new_figure(len(traces), rows=2)
    for axis, (trace, entry) in zip(axes, traces.items(), strict=True):
        for name, colour in COLOURS.items():
            rates = [100 * cell["systems"][name]["hit_rate"] for cell in entry["cells"]]
            shares = [100 * share for share in result["shares"]]
            axis.plot(shares, rates, marker="o", markersize=3, color=colour, label=name)
        axis.set(title=trace, xlabel="budget, % of the cache without limit")
        axis.set(ylabel="token hit rate, %", ylim=(0, None))
    save(figure, axes, folder / "paper-comparison.png", columns=5)

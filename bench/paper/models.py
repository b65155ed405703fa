"""How the gain depends on the model: layers of attention and SSM, and the state's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pages import change, percent, table
from bench.paper.plots import COLOURS, new_figure, save
from bench.paper.setting import BEST, SAMPLES, SYSTEMS, Sample, costs_of, load_sample
from bench.replays import Workload, best_marconi, infinite_bytes, measure
from sglang_hybrid.core.costs import ModelCosts

RATIOS = {"1:2": (15, 30), "1:4": (9, 36), "1:8": (5, 40)}
"""45 mixers each, with N = 128."""

STATE_DIMS = (16, 32, 64, 128)
"""With 4 attention and 24 SSM layers."""

_SHARE = 0.1
_SAMPLES = tuple(sample for sample in SAMPLES if sample.trace != "weka")
_NAMES = ("vLLM+", "SGLang+", "LRU", "Marconi", "utility", "auto")


def run(traces: Path | None) -> dict[str, Any]:
    """Once at the same bytes for all models, once at the same share of what each would hold."""
    assert traces is not None
    ratios = {name: costs_of(*layers, 128) for name, layers in RATIOS.items()}
    states = {f"N = {n}": costs_of(4, 24, n) for n in STATE_DIMS}
    result: dict[str, Any] = {"share": _SHARE, "traces": {}}
    for sample in _SAMPLES:
        workload = load_sample(traces, sample)
        result["traces"][sample.trace] = {
            "requests": len(workload),
            "ratios": _cells(workload, sample, ratios),
            "states": _cells(workload, sample, states),
        }
    return result


def _cells(
    workload: Workload, sample: Sample, models: dict[str, ModelCosts]
) -> list[dict[str, Any]]:
    full = {name: infinite_bytes(workload, costs) for name, costs in models.items()}
    middle = list(full.values())[len(full) // 2]
    cells = []
    for model, costs in models.items():
        cell: dict[str, Any] = {"model": model}
        for kind, size in (("same share", _SHARE * full[model]), ("same bytes", _SHARE * middle)):
            rates = {
                name: measure(
                    workload, costs, SYSTEMS[name].policy, sample.admission(SYSTEMS[name]), size
                ).hit_rate
                for name in _NAMES
            }
            rates[BEST] = best_marconi(workload, costs, size).as_json()["hit_rate"]
            cell[kind] = {"bytes": size, "rates": rates}
        cells.append(cell)
    return cells


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"layer-ratio": _table(result, "ratios"), "state-dim": _table(result, "states")}


def _table(result: dict[str, Any], which: str) -> str:
    rows = []
    for trace, entry in result["traces"].items():
        for kind in ("same share", "same bytes"):
            for cell in entry[which]:
                rates = cell[kind]["rates"]
                row = [trace, kind, cell["model"]]
                row += [percent(rates[name]) for name in ("vLLM+", "SGLang+", "LRU", BEST)]
                for theirs in ("vLLM+", "SGLang+", "LRU"):
                    row.append(_gain(rates, theirs))
                rows.append(row)
    header = ["trace", "budget", "model", "vLLM+", "SGLang+", "LRU", BEST]
    header += ["gain over vLLM+", "over SGLang+", "over LRU"]
    return table(header, rows)


def _gain(rates: dict[str, float], theirs: str) -> str:
    if rates[theirs] <= 0:
        return "-"
    ratio = rates[BEST] / rates[theirs]
    return f"{ratio:.1f}x" if ratio >= 3 else change(ratio)


def plot(result: dict[str, Any], folder: Path) -> None:
    figure, axes = new_figure(2)
    for axis, which in zip(axes, ("ratios", "states"), strict=True):
        for (trace, entry), colour in zip(
            result["traces"].items(), (COLOURS["Marconi"], COLOURS["auto"], "#7b2d8b"), strict=True
        ):
            for kind, style in (("same share", "-"), ("same bytes", ":")):
                cells = [cell[kind]["rates"] for cell in entry[which]]
                gains = [100 * (rates[BEST] / rates["SGLang+"] - 1) for rates in cells]
                names = [cell["model"] for cell in entry[which]]
                axis.plot(names, gains, style, marker="o", color=colour, label=f"{trace}, {kind}")
        axis.set(ylabel="gain over SGLang+, %")
    axes[0].set(title="attention : SSM layers")
    axes[1].set(title="state dimension")
    save(figure, axes, folder / "paper-models.png", columns=3)

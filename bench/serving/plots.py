"""Plots of a comparison: a point per arm at the mean over seeds, a line from least to greatest."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.serving.report import FIGURES, Comparison, Figure

COLOURS = {
    "stock-rust": "#adb5bd",
    "stock-python": "#6c757d",
    "stock-cap": "#343a40",
    "lru": "#8a5a44",
    "marconi": "#e07a1f",
    "auto": "#2a6f97",
    "patched": "#7b2d8b",
}
SHOWN = {
    "hit-rate": "hit_rate",
    "ttft": "ttft_p95",
    "ttft-warm": "ttft_p95_warm",
    "throughput": "tokens_per_s",
}


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """One file per figure of `SHOWN`."""
    folder.mkdir(parents=True, exist_ok=True)
    by_key = {figure.key: figure for figure in FIGURES}
    paths = []
    for name, key in SHOWN.items():
        path = folder / f"{name}.png"
        _draw(comparison, by_key[key], path)
        paths.append(path)
    return paths


def _draw(comparison: Comparison, figure: Figure, path: Path) -> None:
    workloads = list(comparison.values)
    chart, axes = plt.subplots(
        1,
        len(workloads),
        figsize=(1 + 2.4 * len(workloads), 3.4),
        layout="constrained",
        squeeze=False,
    )
    scale = 100 if figure.unit == "%" else 1
    handles = {}
    for axis, workload in zip(axes[0], workloads, strict=True):
        for place, arm in enumerate(comparison.arms(workload)):
            values = [scale * v for v in comparison.values[workload][arm][figure.key].values()]
            colour = COLOURS.get(arm, "#444444")
            axis.plot([place, place], [min(values), max(values)], color=colour, linewidth=2)
            (point,) = axis.plot(place, fmean(values), "o", color=colour, markersize=7)
            handles[comparison.titles.get(arm, arm)] = point
        axis.set_title(workload)
        axis.set_xticks([])
        axis.set_xlim(-0.7, len(comparison.arms(workload)) - 0.3)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e9ecef")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    title = f"TTFT {figure.title}" if figure.key.startswith("ttft_p95") else figure.title
    axes[0][0].set_ylabel(f"{title}, {figure.unit}")
    chart.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    chart.savefig(path, dpi=130)
    plt.close(chart)

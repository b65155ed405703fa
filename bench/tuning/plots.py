"""Plots of docs/tuning-results.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.tuning.report import switches, window_rates
from bench.tuning.simulate import WINDOW

COLOURS = {
    "stock": "#adb5bd",
    "lru": "#8a5a44",
    "utility": "#2a9d8f",
    "density": "#7b2d8b",
    "marconi": "#e07a1f",
    "auto": "#2a6f97",
}
_OTHERS = ("#444444", "#f2b134", "#c1121f")
_ALPHA_TICKS = (0, 0.1, 0.5, 2, 8)
_LABELS = {"stock": "stock SGLang"}


def draw(title: str, runs: list[dict[str, Any]], path: Path) -> None:
    """Hit rate of every hundred requests with switches marked, and alpha over time."""
    tuned = [run for run in runs if switches(run)]
    rows = 2 if tuned else 1
    figure, axes = plt.subplots(
        rows,
        1,
        figsize=(9, 3.4 + 1.8 * (rows - 1)),
        layout="constrained",
        sharex=True,
        squeeze=False,
        height_ratios=[2.4, 1][:rows],
    )
    colours = _colours(runs)
    axes[0, 0].set_title(title, fontsize=10)
    _draw_rates(axes[0, 0], runs, colours)
    if tuned:
        _draw_alphas(axes[1, 0], tuned, colours)
    axes[-1, 0].set_xlabel("request")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        for part in runs[0]["parts"][1:]:
            axis.axvline(part["request"], color="#cccccc", linewidth=0.8, zorder=0)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _colours(runs: list[dict[str, Any]]) -> dict[str, str]:
    others = iter(_OTHERS * len(runs))
    return {
        run["server"]: COLOURS[run["server"]] if run["server"] in COLOURS else next(others)
        for run in runs
    }


def _draw_rates(axis: Any, runs: list[dict[str, Any]], colours: dict[str, str]) -> None:
    for run in runs:
        rates = [100 * rate for rate in window_rates(run)]
        ends = [min((i + 1) * WINDOW, run["requests"]) for i in range(len(rates))]
        server = run["server"]
        axis.plot(
            ends,
            rates,
            marker="o",
            markersize=3,
            color=colours[server],
            label=_LABELS.get(server, server),
        )
        for switch in switches(run)[1:]:
            at = min(len(rates) - 1, max(0, -(-switch["request"] // WINDOW) - 1))
            axis.plot(
                switch["request"], rates[at], "v", markersize=9, color=colours[server], zorder=3
            )
    axis.set_ylabel(f"tokens hit of each\n{WINDOW} requests, %")
    axis.set_ylim(0, 100)
    for part in runs[0]["parts"]:
        axis.text(part["request"], 96, f" {part['name']}", color="#888888", va="top")


def _draw_alphas(axis: Any, runs: list[dict[str, Any]], colours: dict[str, str]) -> None:
    for run in runs:
        seen = switches(run)
        times = [switch["request"] for switch in seen] + [run["requests"]]
        alphas = [math.nan if switch["alpha"] is None else switch["alpha"] for switch in seen]
        axis.step(times, [*alphas, alphas[-1]], where="post", color=colours[run["server"]])
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylim(-0.02, 20)
    axis.set_yticks(_ALPHA_TICKS, map(str, _ALPHA_TICKS))
    axis.minorticks_off()
    axis.set_ylabel("alpha in force")

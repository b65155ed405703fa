"""How the plots of the page look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "vLLM+": "#6c757d",
    "vLLM+, leaves only": "#ced4da",
    "SGLang+": "#7b2d8b",
    "LRU": "#8a5a44",
    "Marconi": "#e07a1f",
    "Marconi, in hindsight": "#f2b134",
    "utility": "#2a9d8f",
    "auto": "#2a6f97",
    "offline": "#444444",
}


def new_figure(panels: int, rows: int = 1) -> tuple[Any, list[Any]]:
    figure, axes = plt.subplots(
        rows, panels // rows, figsize=(11, 3.6 * rows), layout="constrained", squeeze=False
    )
    return figure, list(axes.flat)


def save(figure: Any, axes: list[Any], path: Path, columns: int) -> None:
    """One legend above all panels."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)

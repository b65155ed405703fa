"""Bar chart of replay_chat reports.

python bench/plot_replays.py --out docs/img/replay.png LABEL=FILE.json ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_CACHES = {"hybrid-marconi": ("hybrid-marconi", "#2a6f97"), None: ("stock SGLang", "#adb5bd")}


def main() -> None:
    """Reports of one label stand side by side, a bar per cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("reports", nargs="+", metavar="LABEL=FILE")
    args = parser.parse_args()
    groups: dict[str, dict[str | None, dict]] = {}
    for item in args.reports:
        label, _, path = item.partition("=")
        report = json.loads(Path(path).read_text())
        groups.setdefault(label, {})[report["server"]["radix_cache_backend"]] = report["summary"]
    panels = [
        ("token hit rate, %", lambda summary: 100 * summary["token_hit_rate"], "{:.1f}"),
        ("request hit rate, %", lambda summary: 100 * summary["request_hit_rate"], "{:.1f}"),
        ("prompt tokens computed, thousands", _computed, "{:.0f}"),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.4), layout="constrained")
    for axis, panel in zip(axes, panels, strict=True):
        _draw(axis, groups, *panel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(args.out, dpi=120)


def _computed(summary: dict) -> float:
    return (summary["prompt_tokens"] - summary["cached_tokens"]) / 1000


def _draw(axis, groups, title, value, number) -> None:
    width = 0.38
    for offset, (cache, (name, colour)) in enumerate(_CACHES.items()):
        places = [place + (offset - 0.5) * width for place in range(len(groups))]
        heights = [value(group[cache]) if cache in group else 0 for group in groups.values()]
        bars = axis.bar(places, heights, width, label=name, color=colour)
        axis.bar_label(bars, [number.format(height) for height in heights], fontsize=8)
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()

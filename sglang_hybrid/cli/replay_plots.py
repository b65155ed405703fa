"""The figure that `hybrid-marconi replay --plot` writes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sglang_hybrid.cli.replay_series import (
    SHARES,
    Series,
    alpha_series,
    axis_of,
    gains_over_lru,
    limits,
    series_of,
)
from sglang_hybrid.sim.results import Row

_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
_LINES = ("-", "--", "-.", ":")

Axes = Any  # matplotlib is not typed strictly
Panel = Callable[[Axes], None]


def drawn(rows: Sequence[Row], format: str) -> bytes:
    """The figure as the content of a file: png, svg or pdf."""
    panels: list[Panel] = [
        lambda axes, share=share, title=title: _draw_shares(axes, rows, share, title)  # type: ignore[misc]
        for share, title in SHARES.items()
    ]
    alphas = alpha_series(rows)
    if alphas:
        panels.append(lambda axes: _draw_alphas(axes, alphas))
    where, gains = gains_over_lru(rows)
    if gains:
        colors = _colors(series_of(rows, "flops_saved_share", axis_of(rows)))
        panels.append(lambda axes: _draw_gains(axes, where, gains, colors))
    columns = 2 if len(panels) == 4 else len(panels)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.4 * lines), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    figure.suptitle(f"{rows[0].trace}, {rows[0].model}, {rows[0].requests:,} requests")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=True):
        panel(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format)
    return buffer.getvalue()


def _draw_shares(axes: Axes, rows: Sequence[Row], share: str, title: str) -> None:
    """Against the budget (or the ratio), or as bars where there is only one."""
    axis = axis_of(rows)
    lines = series_of(rows, share, axis)
    axes.set_title(title)
    if max((len(line.x) for line in lines), default=0) > 1:
        _draw_lines(axes, lines)
        axes.set_xlabel(axis.label)
        if axis.is_logarithmic:
            axes.set_xscale("log")
        _tick(axes, sorted({x for line in lines for x in line.x}))
        for name, value in limits(rows, share).items():
            axes.axhline(value, color="0.5", lw=1, ls=":")
            axes.annotate(
                name, (0.01, value), xycoords=("axes fraction", "data"), fontsize=7, va="bottom"
            )
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    else:
        _draw_bars(axes, lines, limits(rows, share))
        size = max((row.budget_bytes or 0.0 for row in rows), default=0.0)
        axes.set_title(f"{title}, {size / 2**30:.3g} GiB")


def _draw_lines(axes: Axes, lines: Sequence[Series]) -> None:
    colors = _colors(lines)
    admissions = list(dict.fromkeys(line.admission for line in lines))
    for line in lines:
        style = _LINES[admissions.index(line.admission) % len(_LINES)]
        color = "k" if line.is_bound else colors[line.policy]
        name = line.policy if len(admissions) == 1 else f"{line.policy}, {line.admission}"
        axes.plot(
            line.x,
            line.y,
            style,
            color=color,
            lw=1 if line.is_bound else 1.6,
            marker=None if line.is_bound else ".",
            label="upper bound" + name.removeprefix("bound") if line.is_bound else name,
        )


def _colors(lines: Sequence[Series]) -> dict[str, str]:
    """Of each policy, the same in all panels."""
    policies = dict.fromkeys(line.policy for line in lines if not line.is_bound)
    return {policy: _COLORS[i % len(_COLORS)] for i, policy in enumerate(policies)}


def _draw_bars(axes: Axes, lines: Sequence[Series], lone: dict[str, float]) -> None:
    """What no policy can be, in grey."""
    several = len({line.admission for line in lines}) > 1
    bars = []
    for line in lines:
        name = "upper bound" if line.is_bound else line.policy
        color = "0.7" if line.is_bound else "C0"
        bars.append((f"{name}, {line.admission}" if several else name, line.y[0], color))
    bars += [(name, value, "0.7") for name, value in lone.items()]
    at = range(len(bars))
    axes.barh(at, [value for _, value, _ in bars], 0.6, color=[color for _, _, color in bars])
    axes.set_yticks(at, [name for name, _, _ in bars])
    for i, (_, value, _) in enumerate(bars):
        axes.annotate(f" {value:.1%}", (value, i), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


def _tick(axes: Axes, values: Sequence[float]) -> None:
    """Label the values themselves, not powers of ten."""
    axes.minorticks_off()
    axes.set_xticks(values, [f"{value:.3g}" for value in values], fontsize=8)


def _draw_alphas(axes: Axes, lines: Sequence[Series]) -> None:
    axes.set_title("FLOPs saved by alpha")
    for line in lines:
        axes.plot(line.x, line.y, ".-", label=f"{line.policy}, {line.admission}")
    axes.set_xlabel("alpha")
    axes.set_xscale("symlog", linthresh=0.1)
    _tick(axes, sorted({x for line in lines for x in line.x}))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _draw_gains(
    axes: Axes, where: str, gains: dict[str, dict[str, float]], colors: dict[str, str]
) -> None:
    """Grouped bars: a group for each length, a bar for each policy."""
    axes.set_title(f"FLOPs saved beyond LRU by length of prompt, {where}", fontsize=10)
    lengths = list(next(iter(gains.values())))
    width = 0.8 / len(gains)
    for i, (policy, by_length) in enumerate(gains.items()):
        at = [k + (i - (len(gains) - 1) / 2) * width for k in range(len(lengths))]
        axes.bar(at, list(by_length.values()), width, label=policy, color=colors[policy])
    axes.set_xticks(range(len(lengths)), lengths, fontsize=8)
    axes.set_xlabel("tokens of the prompt")
    axes.axhline(0, color="k", lw=0.8)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=7)

"""How `hybrid-marconi top` looks; fits sixty columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sglang_hybrid.cli.status import shown
from sglang_hybrid.cli.top_figures import Figures, Rates
from sglang_hybrid.cli.units import show_bytes, show_flops

_BAR = 16
_NOTHING = "-"


def screen(figures: Figures, url: str) -> RenderableType:
    """Everything about one look."""
    parts: list[RenderableType] = [
        _title(figures, url),
        *_failures(figures),
        _hits(figures),
        _short_hits(figures),
        _checkpoints(figures),
        _evictions(figures),
        *_tuning(figures),
        *_times(figures),
    ]
    return Group(*parts)


def _title(figures: Figures, url: str) -> Text:
    ranks = len(figures.caches)
    policy = (figures.caches[0].get("config") or {}).get("policy", "?")
    several = f", {ranks} DP ranks" if ranks > 1 else ""
    return Text(f"hybrid-marconi at {url}, policy {policy}{several}", style="bold")


def _failures(figures: Figures) -> list[Text]:
    """A line for every part of the cache that has failed; mostly none."""
    return [
        Text(
            f"{name}: {found['failures']} failures, {'on' if found['is_on'] else 'off'}, first: "
            f"{shown(found['error'], 200)}",
            style="bold red",
        )
        for status in figures.caches
        for name, found in (status.get("parts") or {}).items()
        if found["failures"]
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _hits(figures: Figures) -> Table:
    table = _table("", "", "now", "total")

    def row(name: str, show: Any) -> None:
        now = show(figures.interval) if figures.interval else _NOTHING
        table.add_row(name, now, show(figures.total))

    row("requests", lambda rates: _count(rates.counters.get("requests", 0)))
    if figures.interval:
        per_second = figures.interval.counters.get("requests", 0) / max(figures.seconds, 1e-9)
        table.add_row("requests per second", f"{per_second:,.1f}", "")
    row("hit rate, tokens", lambda rates: _percent(rates.hit_rate))
    row("saved FLOPs", lambda rates: _percent(rates.saved_rate))
    row("lost to a missing state", lambda rates: _percent(rates.lost_rate))
    return table


def _short_hits(figures: Figures) -> Table:
    table = _table("\nWhat ended the hit", "", "requests", "tokens", "now")
    now = figures.interval.short_hits if figures.interval else {}
    for reason, found in figures.total.short_hits.items():
        recent = _count(now[reason]["requests"]) if reason in now else _NOTHING
        table.add_row(escape(reason), _count(found["requests"]), _count(found["tokens"]), recent)
    return table


def _checkpoints(figures: Figures) -> Group:
    table = _table("\nCheckpoints", "", "live", "memory", "taken", "hit")
    counters, sizes = figures.total.counters, figures.live_bytes
    for kind, live in figures.live.items():
        table.add_row(
            escape(kind.replace("_", " ")),
            _count(live),
            show_bytes(sizes.get(kind, 0)),
            _count(counters.get(f"{kind}_checkpoints", 0)),
            _count(counters.get(f"{kind}_hits", 0)),
        )
    skipped, declined = (counters.get(f"{why}_checkpoints", 0) for why in ("skipped", "declined"))
    note = f"{_count(skipped)} not taken for want of a slot, {_count(declined)} declined"
    return Group(table, Text(note))


def _evictions(figures: Figures) -> Table:
    table = _table("\nEvictions", "", "now", "total")
    now = figures.interval.counters if figures.interval else {}
    for name, key in (
        ("states", "evicted_states"),
        ("  for their slot, ends of paths", "evicted_state_leaves"),
        ("  for their slot, inside a path", "evicted_state_interiors"),
        ("  never hit", "evicted_unused"),
        ("leaves, for their KV", "evicted_leaves"),
    ):
        recent = _count(now[key]) if key in now else _NOTHING
        table.add_row(name, recent, _count(figures.total.counters.get(key, 0)))
    return table


def _tuning(figures: Figures) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for rank, tuning in enumerate(figures.tunings):
        if tuning is not None:
            name = f"Tuner of DP rank {rank}" if len(figures.tunings) > 1 else "Tuner"
            parts += [_tuner(name, tuning), *_scores(tuning)]
    return parts


def _tuner(name: str, tuning: Mapping[str, Any]) -> Table:
    table = _table(f"\n{name}", "", "")
    alpha, agreement = tuning.get("alpha"), tuning.get("agreement")
    switches = ", ".join(f"{reason} {n}" for reason, n in (tuning.get("switches") or {}).items())
    for label, value in (
        ("mode", tuning.get("mode")),
        ("arm in force", tuning.get("arm")),
        ("alpha", _NOTHING if alpha is None else f"{alpha:g}"),
        ("process", tuning.get("process")),
        ("switches", switches or "none"),
        ("windows", f"{tuning.get('windows', 0)} ({tuning.get('dropped_windows', 0)} dropped)"),
        ("backlog", f"{tuning.get('backlog', 0)} requests"),
        ("failures, stalls", f"{tuning.get('failures', 0)}, {tuning.get('stalls', 0)}"),
        ("predicted", show_flops(tuning.get("predicted_flops") or 0)),
        ("realised", show_flops(tuning.get("realised_flops") or 0)),
        ("realised / predicted", _percent(agreement)),
    ):
        table.add_row(label, escape(str(value)))
    return table


def _scores(tuning: Mapping[str, Any]) -> Sequence[Table]:
    scores = tuning.get("scores") or {}
    if not scores:
        return ()
    table = Table(
        title="\nFLOPs saved lately, by arm",
        title_justify="left",
        box=None,
        pad_edge=False,
        show_header=False,
    )
    table.add_column(overflow="fold", ratio=1)
    table.add_column(no_wrap=True, width=_BAR)
    table.add_column(justify="right", no_wrap=True)
    best = max(scores.values())
    for arm, score in sorted(scores.items(), key=lambda item: -item[1]):
        filled = round(_BAR * max(score, 0) / best) if best > 0 else 0
        name = Text(arm, style="bold" if arm == tuning.get("arm") else "")
        table.add_row(name, "█" * filled, show_flops(score))
    return (table,)


def _times(figures: Figures) -> Sequence[Table]:
    """Empty where the server was started without metrics."""
    rates: Rates = figures.interval or figures.total
    if not rates.times:
        return ()
    table = _table("\nScheduler time in the cache", "", "calls", "per call", "share")
    for section, found in rates.times.items():
        calls, seconds = found.get("calls", 0), found.get("seconds", 0.0)
        per_call = f"{seconds / calls * 1e6:,.1f} µs" if calls else _NOTHING
        share = _percent(seconds / figures.seconds) if figures.interval else _NOTHING
        table.add_row(escape(section), _count(calls), per_call, share)
    return (table,)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{100 * value:.1f} %"

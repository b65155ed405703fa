"""What `hybrid-marconi replay` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_hybrid.cli.units import show_bytes, show_flops, show_seconds
from sglang_hybrid.core.presets import PRESETS as MODELS
from sglang_hybrid.sim.admission import PRESETS as ADMISSIONS
from sglang_hybrid.sim.candidates import STOCK_RATIO
from sglang_hybrid.sim.policy_spec import PRESETS as POLICIES
from sglang_hybrid.sim.recommend import Recommendation
from sglang_hybrid.sim.results import Bound, HitFigures, ReplayResult, Row
from sglang_hybrid.sim.sweep import SPECIAL
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.workload import Workload

_SHOWN_PROBLEMS = 3


def print_names(console: Console) -> None:
    """What `--policy`, `--admission` and `--model` may be."""
    policies = {
        **{name: help for name, (_, help) in POLICIES.items()},
        "marconi:alpha=tuned": "the paper's tuner: alpha chosen once, after a bootstrap window",
        "auto": "utility and density as shadow caches, the better one in force",
        **SPECIAL,
    }
    admissions = {name: help for name, (_, help) in ADMISSIONS.items()}
    models = {name: preset.description for name, preset in MODELS.items()}
    for title, names in (("policy", policies), ("admission", admissions), ("model", models)):
        table = _table(f"--{title}", ["name", "what it is"])
        for name, help in names.items():
            table.add_row(escape(name), escape(help))
        console.print(table)


def print_trace(console: Console, trace: Trace, load: Workload, problems: Sequence[str]) -> None:
    """What was replayed, and what had to be assumed."""
    tokens = int(trace.input_len.sum())
    console.print(
        f"{escape(trace.name)}: {len(trace):,} requests, {tokens:,} prompt tokens, "
        f"{int(trace.output_len.sum()):,} generated",
        highlight=False,
    )
    for assumption in trace.assumptions:
        print_note(console, assumption)
    for problem in problems[1 : 1 + _SHOWN_PROBLEMS]:
        print_note(console, f"also left out: {problem}")
    if trace.tokens_per_symbol > 1:
        print_note(
            console, f"Tokens are known in blocks of {trace.tokens_per_symbol}, hits as well."
        )
    if load.concurrency is not None and not (trace.arrival == trace.arrival).any():
        print_note(
            console,
            "The trace tells no arrivals: each request arrives when the one before it starts; "
            "--arrival assumes others.",
        )


def print_rows(console: Console, load: Workload, rows: Sequence[Row]) -> None:
    """One line a row."""
    how = "one after another"
    if load.concurrency is not None:
        how = f"up to {load.concurrency.max_running} at a time"
    columns = [column for column in _COLUMNS if _tells_something(column, rows)]
    table = _table(
        f"{load.trace}, {load.model}, requests {how}",
        [name for name, _, _ in columns],
        left=[i for i, (_, is_left, _) in enumerate(columns) if is_left],
    )
    bounds = [row for row in rows if isinstance(row, Bound)]
    for row in rows:
        table.add_row(
            *(escape(show(row)) for _, _, show in columns),
            end_section=bool(bounds) and row is rows[len(rows) - len(bounds) - 1],
        )
    console.print(table)
    _print_rejected(console, rows)


def print_details(console: Console, rows: Sequence[Row]) -> None:
    """Evictions and reuse, and figures by length of prompt."""
    results = [row for row in rows if isinstance(row, ReplayResult)]
    names = ["replay", "KV reused", "states reused", "tokens lost to a missing state"]
    names += ["evicted: leaves", "other states", "KV tokens", "rejected", "held: states"]
    table = _table("Inside the cache", [*names, "KV tokens"])
    lengths = ["replay", "prompt tokens", "requests", "token hit rate", "FLOPs saved", "mean TTFT"]
    by_length = _table("By length of prompt", lengths, left=[0, 1])
    for result in results:
        table.add_row(
            escape(label(result)),
            f"{result.kv_reused_share:.1%}",
            f"{result.states_reused_share:.1%}",
            f"{result.tokens_lost_to_missing_state:,}",
            f"{result.states_evicted_leaf:,}",
            f"{result.states_evicted_interior:,}",
            f"{result.kv_tokens_evicted:,}",
            f"{result.rejected:,}",
            f"{result.resident_states:,}",
            f"{result.resident_kv_tokens:,}",
        )
        for i, bucket in enumerate(result.by_length):
            most = f"to {bucket.to_tokens - 1:,}" if bucket.to_tokens else "and more"
            by_length.add_row(
                escape(label(result)) if i == 0 else "",
                f"{bucket.from_tokens:,} {most}",
                f"{bucket.requests:,}",
                f"{bucket.token_hit_rate:.1%}",
                f"{bucket.flops_saved_share:.1%}",
                show_seconds(bucket.mean_ttft_seconds),
                end_section=i + 1 == len(result.by_length),
            )
    console.print(table)
    console.print(by_length)


def print_recommendation(console: Console, advice: Recommendation) -> None:
    """How to run the server, and what to expect."""
    memory = show_bytes(advice.memory_bytes)
    console.print(
        f"Recommended for {escape(advice.trace)}, {escape(advice.model)} and {memory}: "
        f"policy {escape(advice.policy)}, admission {escape(advice.admission)}, "
        f"{advice.state_slots:,} states and {advice.kv_tokens:,} tokens of KV",
        highlight=False,
        soft_wrap=True,
    )
    for flag in (*advice.flags, f"--cache-config '{json.dumps(advice.config)}'"):
        console.print(f"    {escape(flag)}", highlight=False, soft_wrap=True)
    names = ["replay", "ratio", "token hit rate", "FLOPs saved", "TTFT P50", "TTFT P95"]
    table = _table("What to expect", names)
    table.add_row("recommended", f"{advice.ratio:g}", *_figures(advice.expected))
    table.add_row("stock SGLang", f"{STOCK_RATIO:g}", *_figures(advice.stock), end_section=True)
    for other in advice.others:
        table.add_row(escape(other.label), f"{other.ratio:g}", *_figures(other.figures))
    console.print(table)
    console.print(_gain(advice), highlight=False, soft_wrap=True)
    if advice.judged_from:
        print_note(
            console,
            f"Chosen on the first {advice.judged_from:,} requests; the figures are those of the "
            f"{advice.requests - advice.judged_from:,} that follow.",
        )
    else:
        print_note(
            console,
            f"{advice.requests:,} requests are too few to choose on some and judge on others: "
            "the gain may be partly chance.",
        )
    print_note(
        console,
        "Slots are those for checkpoints; running requests need more of them "
        "(docs/operations.md, Sizing the pools).",
    )


def _gain(advice: Recommendation) -> str:
    ours, stock = advice.expected, advice.stock
    if ours.flops_saved <= stock.flops_saved:
        return "No gain over stock SGLang: what was chosen does not save more on these requests."
    computed = (1 - ours.flops_saved_share) / (1 - stock.flops_saved_share)
    return (
        f"Gain over stock SGLang: token hit rate {stock.token_hit_rate:.1%} -> "
        f"{ours.token_hit_rate:.1%}, {1 - computed:.1%} fewer FLOPs of prefill to compute, "
        f"TTFT P95 {show_seconds(stock.ttft.p95)} -> {show_seconds(ours.ttft.p95)}"
    )


def print_note(console: Console, note: str) -> None:
    """A remark below a table."""
    console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)


def label(row: Row) -> str:
    """What tells a row from others."""
    parts = [row.policy, row.admission, _budget(row), _ratio(row)]
    return ", ".join(part for part in parts if part and part != "-")


def _budget(row: Row) -> str:
    return "-" if row.budget_bytes is None else show_bytes(row.budget_bytes)


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"ratio {row.ratio:g}"


def _pools(row: Row) -> str:
    if row.state_slots is None:
        return ""
    return f"{row.ratio:g}: {row.state_slots:,} states, {row.kv_tokens:,} tokens"


def _in_force(row: Row) -> str:
    """What a policy that chooses has chosen, at the end."""
    if isinstance(row, Bound) or (not row.switches):
        return ""
    last = row.switches[-1]
    alpha = "" if last.alpha is None else f"alpha {last.alpha:g}"
    if last.arm.startswith(row.policy.split(":")[0]) and len(row.switches) == 1:
        return alpha
    since = f"from {last.request:,}" if last.request else ""
    return ", ".join(filter(None, (last.arm, alpha, since)))


def _saved(row: Row) -> str:
    return f"{row.flops_saved_share:.1%}, {show_flops(row.flops_saved)}"


def _ttft(row: Row, name: str) -> str:
    return "" if isinstance(row, Bound) else show_seconds(getattr(row.ttft, name))


_COLUMNS: tuple[tuple[str, bool, Callable[[Row], str]], ...] = (
    ("policy", True, lambda row: row.policy),
    ("admission", True, lambda row: row.admission or "-"),
    ("budget", False, _budget),
    ("pools", True, _pools),
    ("token hit rate", False, lambda row: f"{row.token_hit_rate:.1%}"),
    ("FLOPs saved", False, _saved),
    ("TTFT P50", False, lambda row: _ttft(row, "p50")),
    ("TTFT P95", False, lambda row: _ttft(row, "p95")),
    ("TTFT P99", False, lambda row: _ttft(row, "p99")),
    ("in force at the end", True, _in_force),
)


def _tells_something(column: tuple[str, bool, Callable[[Row], str]], rows: Sequence[Row]) -> bool:
    return any(column[2](row) for row in rows)


def _figures(figures: HitFigures) -> tuple[str, ...]:
    return (
        f"{figures.token_hit_rate:.1%}",
        f"{figures.flops_saved_share:.1%}",
        show_seconds(figures.ttft.p50),
        show_seconds(figures.ttft.p95),
    )


def _print_rejected(console: Console, rows: Sequence[Row]) -> None:
    worst = max(
        (row for row in rows if isinstance(row, ReplayResult)),
        key=lambda row: row.rejected,
        default=None,
    )
    if worst is not None and worst.rejected:
        print_note(
            console,
            f"{worst.rejected:,} of {worst.requests:,} requests do not fit into the cache of "
            f"{label(worst)} and ran without it.",
        )


def _table(title: str, columns: Sequence[str], left: Sequence[int] = (0,)) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for i, name in enumerate(columns):
        is_left = i in left or len(columns) == 2
        table.add_column(name, justify="left" if is_left else "right", overflow="fold")
    return table

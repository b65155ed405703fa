"""What `replay_chat` measured: results of requests, their summary and its table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

_SHOWN_PROBLEMS = 10


@dataclass
class RequestResult:
    """One request that was sent.

    Attributes:
        conversation, turn: which request of the trace.
        prompt_tokens, cached_tokens, completion_tokens: as the server reports them.
        ttft_s: seconds from sending to the first event of the reply; None without one.
        duration_s: seconds from sending to the end of the reply.
        error: what went wrong, or None.
    """

    conversation: str
    turn: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    duration_s: float = 0.0
    error: str | None = None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile, always one of `values`; None if there are none."""
    if not values:
        return None
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def summarize(
    results: Sequence[RequestResult],
    conversations: int,
    seconds: float,
    left_out: dict[str, int],
    problems: Sequence[str],
) -> dict[str, Any]:
    """The report's summary; rates are shares of 0..1 over requests without error.

    Args:
        seconds: from the first request to the end of the last.
        left_out: requests not sent, by reason.
        problems: lines of the trace that could not be read.
    """
    served = [result for result in results if result.error is None]
    prompt = sum(result.prompt_tokens for result in served)
    cached = sum(result.cached_tokens for result in served)
    ttfts = [result.ttft_s for result in served if result.ttft_s is not None]
    return {
        "conversations": conversations,
        "requests": len(results),
        "errors": len(results) - len(served),
        "error_messages": dict(Counter(r.error for r in results if r.error)),
        "left_out": left_out,
        "trace_problems": list(problems),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": sum(result.completion_tokens for result in served),
        "token_hit_rate": cached / prompt if prompt else None,
        "request_hit_rate": (
            sum(result.cached_tokens > 0 for result in served) / len(served) if served else None
        ),
        "ttft_s": {f"p{percent}": percentile(ttfts, percent) for percent in (50, 95, 99)},
        "seconds": seconds,
    }


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """The table, followed by everything that was left out or went wrong."""
    console = console or Console()
    summary, server = report["summary"], report["server"]
    cache = server.get("radix_cache_backend") or "built into SGLang"
    console.print(f"{report['settings']['trace']}, cache: {cache}", highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("what")
    table.add_column("value", justify="right")
    for row in _rows(summary, server):
        table.add_row(*row)
    console.print(table)
    for reason, count in summary["left_out"].items():
        console.print(f"left out: {count} requests, {reason}", markup=False, soft_wrap=True)
    problems = [f"malformed: {problem}" for problem in summary["trace_problems"]]
    errors = summary["error_messages"].items()
    problems += [f"error: {count} x {message}" for message, count in errors]
    for line in problems[:_SHOWN_PROBLEMS]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(problems) > _SHOWN_PROBLEMS:
        console.print(f"and {len(problems) - _SHOWN_PROBLEMS} more kinds of problems (--json)")


def _rows(summary: dict[str, Any], server: dict[str, Any]) -> list[tuple[str, str]]:
    ttft = summary["ttft_s"]
    rows = [
        ("conversations", f"{summary['conversations']:,}"),
        ("requests", f"{summary['requests']:,}"),
        ("errors", f"{summary['errors']:,}"),
        ("prompt tokens", f"{summary['prompt_tokens']:,}"),
        ("cached tokens", f"{summary['cached_tokens']:,}"),
        ("token hit rate", _percent(summary["token_hit_rate"])),
        ("request hit rate", _percent(summary["request_hit_rate"])),
        *((f"TTFT {name.upper()}", _seconds(value)) for name, value in ttft.items()),
        ("completion tokens", f"{summary['completion_tokens']:,}"),
        ("time", _seconds(summary["seconds"])),
    ]
    if server:
        pools = f"{server['max_mamba_cache_size']} states, {server['max_total_num_tokens']} tokens"
        rows += [("strategy", str(server["mamba_radix_cache_strategy"])), ("pools", pools)]
    return rows


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"

"""What checkpoints per block cost, and how seldom they are used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pages import percent, table
from bench.paper.setting import PAPER_7B
from bench.replays import load_workload, measure, trace_path

BLOCK = 32
_TOKENS, _PAGE = 10_000, 16
_TRANSFORMER_KV = 32 * 4 * 4096  # bytes per token, 32 layers of multi-head attention
SHARES = (
    ("taubench", None, 32),
    ("miniswe", None, 32),
    ("mooncake", 3000, 32),
    ("mooncake", None, 128),
    ("mooncake_synth", 2000, 32),
    ("weka", 1500, 32),
)
"""Trace, its first requests (None: all), block size."""


def run(traces: Path | None) -> dict[str, Any]:
    held = PAPER_7B.held_bytes(_TOKENS, _TOKENS // _PAGE)
    result: dict[str, Any] = {
        "bytes": held,
        "times_transformer": held / (_TRANSFORMER_KV * _TOKENS),
        "shares": [],
    }
    for name, limit, block in SHARES if traces else ():
        workload = load_workload(trace_path(traces, name), limit=limit)
        per_block = measure(workload, PAPER_7B, "lru", f"block:block_tokens={block}", None)
        judicious = measure(workload, PAPER_7B, "lru", "marconi", None)
        result["shares"].append(
            {
                "trace": name,
                "requests": len(workload),
                "all": limit is None,
                "block": block,
                "per_block": per_block.as_json(),
                "marconi": judicious.as_json(),
            }
        )
    return result


def tables(result: dict[str, Any]) -> dict[str, str]:
    sizes = table(
        ["10,000 tokens, a checkpoint per 16", "here", "the paper"],
        [
            ["bytes", f"{result['bytes'] / 1e9:.1f} GB", "17.4 GB"],
            [
                "times the KV of a transformer of 32 layers",
                f"{result['times_transformer']:.1f}",
                "3.3",
            ],
        ],
    )
    if not result["shares"]:
        return {"block-bytes": sizes}
    rows = [["the paper's", "", "32", "25 %", "0.4 %", "65", "", ""]]
    for row in result["shares"]:
        blocks, ours = row["per_block"], row["marconi"]
        rows.append(
            [
                row["trace"],
                f"{row['requests']:,}" + ("" if row["all"] else " (first)"),
                row["block"],
                percent(blocks["kv_reused"]),
                percent(blocks["states_reused"], 2),
                f"{blocks['kv_reused'] / blocks['states_reused']:.0f}",
                percent(ours["kv_reused"]),
                percent(ours["states_reused"]),
            ]
        )
    header = ["trace", "requests", "block", "KV used again", "states used again", "ratio"]
    header += ["Marconi: KV", "Marconi: states"]
    return {"block-bytes": sizes, "block-reuse": table(header, rows)}


def plot(result: dict[str, Any], folder: Path) -> None:
    """Nothing that the table does not show better."""

"""`hybrid-marconi cost`: what KV and checkpoints of a model take, and what they save."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_hybrid.cli.units import show_bytes, show_flops
from sglang_hybrid.core.presets import DTYPE_BYTES, PRESETS, LayerGroup, Model, load_model

_MOST = 2**31 - 1
_PIPED_WIDTH = 200
"""Columns of the tables where there is no terminal to fit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cost`."""
    dtypes = ", ".join(DTYPE_BYTES)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="NAME|PATH", help="a preset, a config.json or its folder")
    model.add_argument("--list", action="store_true", help="print the presets and stop")
    parser.add_argument(
        "--length", type=int, default=10240, help="tokens of a sequence (%(default)s)"
    )
    parser.add_argument(
        "--block", type=int, default=32, help="tokens between checkpoints (%(default)s)"
    )
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel shards (%(default)s)")
    parser.add_argument(
        "--kv-dtype", default="bfloat16", help=f"type of the KV (%(default)s): {dtypes}"
    )
    parser.add_argument(
        "--ssm-dtype", default="float32", help="type of recurrent states (%(default)s)"
    )
    parser.add_argument(
        "--conv-dtype", default="bfloat16", help="type of convolution windows (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write exact numbers there")


def run(args: argparse.Namespace) -> int:
    """Print the costs of a model; returns 2 if the arguments make no sense."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    if args.list:
        _print_presets(console)
        return 0
    try:
        model = _load(args)
        report = _report(model, args)
        if args.json:
            args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        reason = f"{error.strerror}; check the path and who may use it"
        print(f"hybrid-marconi cost: --json {args.json}: {reason}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"hybrid-marconi cost: {error}", file=sys.stderr)
        return 2
    _print_report(console, report)
    return 0


def _load(args: argparse.Namespace) -> Model:
    for name in ("length", "block", "tp"):
        value = getattr(args, name)
        if value < 1:
            raise ValueError(f"--{name} {value} must be at least 1")
        if value > _MOST:
            raise ValueError(f"--{name} must be at most {_MOST}, got a larger number")
    return load_model(
        args.model,
        tp=args.tp,
        kv_dtype=args.kv_dtype,
        ssm_dtype=args.ssm_dtype,
        conv_dtype=args.conv_dtype,
    )


def _report(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """All figures, exact. Bytes and FLOPs of a kind are those of all its layers."""
    length, block, costs = args.length, args.block, model.costs
    block_kv = costs.kv_bytes_per_token * block
    return {
        "model": model.name,
        "notes": list(model.notes),
        "length": length,
        "block": block,
        "tp": args.tp,
        "kv_dtype": args.kv_dtype,
        "ssm_dtype": args.ssm_dtype,
        "conv_dtype": args.conv_dtype,
        "layers": [_layer_report(group, length) for group in model.layers],
        "total": {
            "kv_bytes_per_token": costs.kv_bytes_per_token,
            "state_bytes": costs.state_bytes,
            "flops_linear": costs.flops_linear,
            "flops_quadratic": costs.flops_quadratic,
            "prefill_flops": costs.prefill_flops(length),
            "saved_flops_per_byte": costs.prefill_flops(length) / costs.held_bytes(length, 1),
        },
        "state_tokens": _ratio(costs.state_bytes, costs.kv_bytes_per_token),
        "state_per_block_kv": _ratio(costs.state_bytes, block_kv),
        "per_block": _sequence(model, length, length // block),
        "two_checkpoints": _sequence(model, length, 2),
    }


def _layer_report(group: LayerGroup, length: int) -> dict[str, Any]:
    one, count = group.costs, group.count
    return {
        "kind": group.kind,
        "count": count,
        "kv_bytes_per_token": one.kv_bytes_per_token * count,
        "state_bytes": one.state_bytes * count,
        "flops_linear": one.flops_linear * count,
        "flops_quadratic": one.flops_quadratic * count,
        "prefill_flops": one.prefill_flops(length) * count,
        "saved_flops_per_byte": _ratio(one.prefill_flops(length), one.held_bytes(length)),
    }


def _sequence(model: Model, length: int, checkpoints: int) -> dict[str, Any]:
    """What one cached sequence holds."""
    return {
        "checkpoints": checkpoints,
        "state_bytes": model.costs.state_bytes * checkpoints,
        "kv_bytes": model.costs.kv_bytes_per_token * length,
        "bytes": model.costs.held_bytes(length, checkpoints),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _print_presets(console: Console) -> None:
    table = Table(title="Presets of --model", title_justify="left")
    for column in ("name", "model", "notes"):
        table.add_column(column, overflow="fold")
    for name, preset in PRESETS.items():
        table.add_row(name, escape(preset.description), escape("; ".join(preset.notes)))
    console.print(table)


def _print_report(console: Console, report: dict[str, Any]) -> None:
    _print_layers(console, report)
    _print_derived(console, report)
    for note in report["notes"]:
        console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)


def _print_layers(console: Console, report: dict[str, Any]) -> None:
    length = report["length"]
    table = Table(title=escape(f"{report['model']}: layers of each kind"), title_justify="left")
    table.add_column("kind", overflow="fold")
    for column in (
        "layers",
        "KV per token",
        "checkpoint",
        f"prefill of {length:,} tokens",
        f"saved per cached byte at {length:,}",
    ):
        table.add_column(column, justify="right", overflow="fold")
    total = {"kind": "all", "count": sum(layer["count"] for layer in report["layers"])}
    rows = [*report["layers"], {**total, **report["total"]}]
    for row in rows:
        per_byte = row["saved_flops_per_byte"]
        table.add_row(
            row["kind"],
            str(row["count"]),
            show_bytes(row["kv_bytes_per_token"]),
            show_bytes(row["state_bytes"]),
            show_flops(row["prefill_flops"]),
            "-" if per_byte is None else show_flops(per_byte),
            end_section=row is rows[-2],
        )
    console.print(table)


def _print_derived(console: Console, report: dict[str, Any]) -> None:
    length, block = report["length"], report["block"]
    table = Table(title="What follows", title_justify="left", show_header=False)
    table.add_column("what", overflow="fold")
    table.add_column("value", justify="right", overflow="fold")
    table.add_row("one checkpoint, in tokens of KV", _number(report["state_tokens"], ",.0f"))
    table.add_row(
        f"a checkpoint per block of {block:,} tokens, in KV of the block",
        _number(report["state_per_block_kv"], ",.1f") + " times",
    )
    for key, what in (
        ("per_block", f"{length:,} tokens with a checkpoint every {block:,}"),
        ("two_checkpoints", f"{length:,} tokens with two checkpoints"),
    ):
        held = report[key]
        table.add_row(
            what,
            f"{show_bytes(held['bytes'])} ({show_bytes(held['state_bytes'])} of states, "
            f"{show_bytes(held['kv_bytes'])} of KV)",
        )
    table.add_row(f"prefill of {length:,} tokens", show_flops(report["total"]["prefill_flops"]))
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

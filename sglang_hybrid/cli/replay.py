"""`hybrid-marconi replay`: what a cache would do for a trace."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from sglang_hybrid.cli import replay_tables as tables
from sglang_hybrid.cli.replay_arguments import Choices, add_arguments
from sglang_hybrid.core.presets import Model, load_model
from sglang_hybrid.sim.cells import Cell, CellError
from sglang_hybrid.sim.engine.run import run_serial
from sglang_hybrid.sim.jit import is_cached
from sglang_hybrid.sim.parallel import run_cells
from sglang_hybrid.sim.recommend import Recommendation, recommend_for
from sglang_hybrid.sim.results import ReplayResult, Row
from sglang_hybrid.sim.sweep import INFINITE, BudgetSize, Grid, infinite_cell
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.traces import TraceReport, load_trace
from sglang_hybrid.sim.workload import Workload

__all__ = ["add_arguments", "run"]

_PIPED_WIDTH = 160
"""Columns of the tables where there is no terminal to fit."""


def run(args: argparse.Namespace) -> int:
    """Print what was replayed; returns 2 if the arguments or the trace make no sense."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    if args.list:
        tables.print_names(console)
        return 0
    try:
        return _replay(args, Choices(args), console)
    except (OSError, ValueError) as error:
        print(f"hybrid-marconi replay: {_one_line(error)}", file=sys.stderr)
        return 2
    except CellError as error:
        print(f"hybrid-marconi replay: {_one_line(error)}", file=sys.stderr)
        return 1


def _replay(args: argparse.Namespace, chosen: Choices, console: Console) -> int:
    model = _model(args, chosen)
    report = TraceReport()
    trace = load_trace(chosen.path, report=report, **chosen.trace_options)
    if not is_cached(run_serial):
        print("compiling the simulator, once: this takes about a minute", file=sys.stderr)
    load = Workload.of(trace, model, prefill_time=args.prefill_time, concurrent=chosen.concurrency)
    grid = Grid(load, chosen.admissions)
    cells = _cells(args, chosen, grid)
    rows = run_cells(load, cells, workers=chosen.workers, progress=True)
    advice = _advice(args, chosen, grid) if args.recommend else None
    _write(args, trace, rows, advice)
    tables.print_trace(console, trace, load, [str(problem) for problem in report.problems])
    tables.print_rows(console, load, rows)
    if args.details:
        tables.print_details(console, rows)
    if advice is not None:
        tables.print_recommendation(console, advice)
    for note in model.notes:
        tables.print_note(console, note)
    return 0


def _model(args: argparse.Namespace, chosen: Choices) -> Model:
    return load_model(
        args.model,
        tp=chosen.tp,
        kv_dtype=args.kv_dtype,
        ssm_dtype=args.ssm_dtype,
        conv_dtype=args.conv_dtype,
    )


def _cells(args: argparse.Namespace, chosen: Choices, grid: Grid) -> list[Cell]:
    cells = grid.replays(chosen.policies, chosen.sizes, chosen.ratios, chosen.seed)
    if args.bounds:
        if INFINITE not in chosen.policies:
            cells += [infinite_cell(admission) for admission in grid.admissions]
        cells += grid.bounds(chosen.sizes, chosen.ratios)
    return cells


def _advice(args: argparse.Namespace, chosen: Choices, grid: Grid) -> Recommendation:
    return recommend_for(
        grid.load,
        chosen.memory or _largest(grid, chosen.sizes),
        seed=chosen.seed,
        workers=chosen.workers,
        progress=True,
    )


def _largest(grid: Grid, sizes: Sequence[BudgetSize]) -> BudgetSize:
    budgets = [
        budget for admission in grid.admissions for budget in grid.budgets(admission, sizes, [None])
    ]
    most = max(budget.total_bytes for budget in budgets)
    return BudgetSize(f"{most:.0f}", most)


def _write(
    args: argparse.Namespace, trace: Trace, rows: Sequence[Row], advice: Recommendation | None
) -> None:
    """All files, each at once or not at all (pipes and devices apart)."""
    files: list[tuple[Path, bytes]] = []
    if args.json is not None:
        objects = [row.to_dict() for row in rows]
        if advice is not None:
            objects.append(recommended_object(advice))
        files.append((args.json, (json.dumps(objects, indent=1, allow_nan=False) + "\n").encode()))
    if args.plot is not None:
        from sglang_hybrid.cli.replay_plots import drawn  # matplotlib takes a second to load

        files.append((args.plot, drawn(rows, args.plot.suffix.lower().removeprefix("."))))
    if args.hits is not None:
        files.append((args.hits, _hit_lines(cast(ReplayResult, rows[0]), trace)))
    for path, content in files:
        path = path.resolve()  # what a link points to is written, the link stays
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe or a device
            continue
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def recommended_object(advice: Recommendation) -> dict[str, Any]:
    """A recommendation with the keys that all objects of the JSON file have."""
    return {
        "trace": advice.trace,
        "model": advice.model,
        "policy": advice.policy,
        "admission": advice.admission,
        "budget_bytes": advice.memory_bytes,
        "token_hit_rate": advice.expected.token_hit_rate,
        "flops_saved_share": advice.expected.flops_saved_share,
        "alpha": advice.alpha,
        "recommendation": advice.to_dict(),
    }


def _hit_lines(result: ReplayResult, trace: Trace) -> bytes:
    lines = (
        json.dumps({"input": int(length), "hit": int(hit)}) + "\n"
        for length, hit in zip(trace.input_len, result.hits, strict=True)
    )
    return "".join(lines).encode()


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}; check the path and who may use it"
    return " ".join(str(error).split())

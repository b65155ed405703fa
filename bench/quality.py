"""How close policies come to the best, on stored traces.

python -m bench.quality --traces DIR [--policies auto,utility] [--admission shipped]
    [--only TRACE] [--json FILE] [--page FILE]

Two tables: the cells of the design study beside its figures, and budgets of 1 to 90 % of what a
cache without limit holds. Without --page they are printed; with it they stand between the markers
`quality-cells`, `quality-sweep` and `quality-summary` of that page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.pages import fill, gigabytes, table
from bench.replays import (
    MARCONI_FORMS,
    TRACES,
    Workload,
    best_marconi,
    infinite_bytes,
    load_workload,
    measure,
    missing_traces,
    trace_path,
)
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.bounds import objective_total, upper_bound
from sglang_hybrid.sim.tuning import parse_strategy

COSTS = load_model("paper-7b").costs
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
BASELINES = {
    "LRU": ("lru", "marconi"),
    "SGLang": ("sglang", "stock"),
    "Marconi": ("marconi:alpha=tuned", "marconi"),
    "utility": ("utility", "marconi"),
}
BEST, OFFLINE, BOUND = "Marconi, in hindsight", "offline", "bound"
_INDEXED = ("marconi",)  # with the index of the preset: comparing all candidates takes minutes


class Reference(NamedTuple):
    """A cell of the design study: hit rate in %, or share of FLOPs saved."""

    trace: str
    gigabytes: float
    lru: float
    marconi: float | None
    utility: float
    auto: float
    offline: float


REFERENCES = (
    Reference("taubench", 6.25, 48.9, 61.9, 50.4, 83.8, 88.3),
    Reference("taubench", 10.99, 93.2, 93.2, 95.1, 95.2, 95.2),
    Reference("taubench_jit", 1.2, 0.471, None, 0.475, 0.493, 0.602),
    Reference("miniswe", 6.2, 0.148, None, 0.153, 0.230, 0.417),
    Reference("miniswe", 16.0, 0.489, None, 0.504, 0.583, 0.787),
    Reference("miniswe", 30.1, 0.878, None, 0.887, 0.886, 0.952),
    Reference("mooncake", 316, 0.172, None, 0.178, 0.180, 0.342),
    Reference("mooncake_synth", 52, 0.050, None, 0.050, 0.117, 0.158),
    Reference("mooncake_synth", 305, 0.263, None, 0.281, 0.363, 0.389),
    Reference("weka", 12.6, 0.468, None, 0.474, 0.522, 0.555),
)


def main() -> None:
    """Measure, then print the tables or put them into a page."""
    args = _arguments()
    names = [name for name in TRACES if args.only in (None, name)]
    workloads = {name: load_workload(trace_path(args.traces, name)) for name in names}
    systems = BASELINES | {
        f"{policy}+{args.admission}": (policy, args.admission)
        for policy in (*args.policies, "offline")
    }
    cells = [
        {"reference": reference, **_cell(workloads[reference.trace], reference, systems)}
        for reference in REFERENCES
        if reference.trace in workloads
    ]
    sweep = [
        row for workload in workloads.values() for row in _sweep(workload, systems, args.admission)
    ]
    candidate = f"{args.policies[0]}+{args.admission}"
    texts = {
        "quality-cells": _cell_table(cells, candidate),
        "quality-sweep": _sweep_table(sweep),
        "quality-summary": _summary_table(sweep),
    }
    if args.json:
        args.json.write_text(json.dumps({"cells": cells, "sweep": sweep}, indent=1) + "\n")
    for name, text in texts.items():
        if args.page:
            fill(args.page, name, text)
        else:
            print(f"{name}\n{text}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of NAME.jsonl.gz")
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=["auto"],
        help="the first one stands beside the figures of `auto`",
    )
    parser.add_argument(
        "--admission", default="shipped", help="that of --policies and of the bound"
    )
    parser.add_argument("--only", choices=TRACES, help="one trace")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--page", type=Path, help="Markdown page to fill")
    args = parser.parse_args()
    if missing := missing_traces(args.traces):
        parser.error(f"--traces {args.traces}: lacks {', '.join(missing)} (.jsonl.gz)")
    try:
        parse_admission(args.admission)
        for policy in args.policies:
            parse_strategy(policy)
    except ValueError as error:
        parser.error(str(error))
    return args


def _measure(
    workload: Workload,
    systems: dict[str, tuple[str, str]],
    size: float,
    forms: Sequence[str] = MARCONI_FORMS,
) -> dict[str, dict[str, float]]:
    found = {
        name: measure(workload, COSTS, policy, admission, size).as_json()
        for name, (policy, admission) in systems.items()
    }
    found[BEST] = best_marconi(workload, COSTS, size, forms=forms).as_json()
    found[OFFLINE] = measure(workload, COSTS, "offline", "marconi", size).as_json()
    return found


def _cell(
    workload: Workload, reference: Reference, systems: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    return {"systems": _measure(workload, systems, reference.gigabytes * 1e9)}


def _sweep(
    workload: Workload, systems: dict[str, tuple[str, str]], admission: str
) -> list[dict[str, Any]]:
    full = infinite_bytes(workload, COSTS)
    total = objective_total(workload.tree, COSTS)
    rows = []
    for share in SHARES:
        found = _measure(workload, systems, share * full, _INDEXED)
        bound = upper_bound(workload.tree, COSTS, parse_admission(admission), share * full)
        saved = {name: outcome["saved"] for name, outcome in found.items()}
        saved[BOUND] = round(bound / total, 5)
        rows.append({"trace": workload.name, "share": share, "bytes": share * full, "saved": saved})
    return rows


def _cell_table(cells: list[dict[str, Any]], candidate: str) -> str:
    """Ours, and in brackets the study's figure."""
    columns = (("LRU", "lru"), (BEST, "marconi"), ("utility", "utility"), (candidate, "auto"))
    columns += ((OFFLINE, "offline"),)
    rows = []
    for cell in cells:
        reference: Reference = cell["reference"]
        is_rate = reference.lru > 1
        row = [reference.trace, f"{reference.gigabytes:g} GB", "hits" if is_rate else "FLOPs"]
        for system, field in columns:
            ours = cell["systems"][system]["hit_rate" if is_rate else "saved"]
            theirs = getattr(reference, field)
            known = "-" if theirs is None else f"{theirs if is_rate else 100 * theirs:.1f}"
            row.append(f"{100 * ours:.1f} ({known})")
        row.append(f"{100 * cell['systems']['SGLang']['hit_rate' if is_rate else 'saved']:.1f}")
        rows.append(row)
    return table(["trace", "budget", "%", *(name for name, _ in columns), "SGLang"], rows)


def _sweep_table(sweep: list[dict[str, Any]]) -> str:
    """Share of prefill FLOPs saved, in %."""
    names = list(sweep[0]["saved"])
    rows = [
        [row["trace"], f"{100 * row['share']:.0f} %", gigabytes(row["bytes"])]
        + [f"{100 * row['saved'][name]:.1f}" for name in names]
        for row in sweep
    ]
    return table(["trace", "budget", "bytes", *names], rows)


def closed(saved: dict[str, float], name: str) -> float | None:
    """Share of the way from LRU to offline; None where the two are less than a point apart."""
    gap = saved[OFFLINE] - saved["LRU"]
    return (saved[name] - saved["LRU"]) / gap if gap >= 0.01 else None


def _summary_table(sweep: list[dict[str, Any]]) -> str:
    """Per trace, the mean share of the gap that each system closes; over all, the worst cells."""
    names = [name for name in sweep[0]["saved"] if name not in ("LRU", OFFLINE, BOUND)]
    rows = []
    for trace in dict.fromkeys(row["trace"] for row in sweep):
        mine = [row["saved"] for row in sweep if row["trace"] == trace]
        shares = {
            name: [share for saved in mine if (share := closed(saved, name)) is not None]
            for name in names
        }
        cells = len(next(iter(shares.values())))
        rows.append(
            [f"{trace}: gap closed, mean of {cells}"]
            + [f"{100 * np.mean(values):.0f} %" if values else "-" for values in shares.values()]
        )
    for label, other in (("LRU", "LRU"), ("SGLang", "SGLang")):
        points = {
            name: [100 * (row["saved"][name] - row["saved"][other]) for row in sweep]
            for name in names
        }
        rows.append(
            [f"points over {label}: mean"] + [f"{np.mean(v):+.1f}" for v in points.values()]
        )
        rows.append([f"points over {label}: worst"] + [f"{min(v):+.1f}" for v in points.values()])
    return table(["", *names], rows)


if __name__ == "__main__":
    main()

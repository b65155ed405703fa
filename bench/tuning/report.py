"""Tables of docs/tuning-results.md, from what `runs` kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.pages import percent, table
from bench.tuning.simulate import Replayed, windows
from bench.tuning.workloads import REQUESTS
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.tuning import saved_flops

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
ORDER = ("stock", "lru", "utility", "density", "marconi", "auto")


Runs = dict[tuple[str, str], list[dict[str, Any]]]
"""Runs by strategy and workload, servers in the order of the comparison."""


def load_runs(folder: Path) -> Runs:
    """What `runs.run_all` kept in ``folder``."""
    runs: Runs = {}
    for strategy in STRATEGIES:
        for name in REQUESTS:
            paths = sorted((folder / strategy).glob(f"{name}-*.json"))
            found = [json.loads(path.read_text()) for path in paths]
            if found:
                found.sort(key=lambda run: (_place(run["server"]), run["server"]))
                runs[strategy, name] = found
    return runs


def _place(server: str) -> int:
    return ORDER.index(server) if server in ORDER else len(ORDER)


def hit_rate(run: dict[str, Any]) -> float:
    return sum(run["cached_tokens"]) / sum(run["prompt_tokens"])


def saved_share(run: dict[str, Any], costs: ModelCosts) -> float:
    """Prefill FLOPs saved, of those of all prompts."""
    saved, all_of_them = (
        saved_flops(costs, np.array(run[name])) for name in ("cached_tokens", "prompt_tokens")
    )
    return saved / all_of_them


def switches(run: dict[str, Any]) -> list[dict[str, Any]]:
    """What was in force when, of a server that tells.

    Each entry has ``request`` (a look at the server after so many requests was the first to
    find it), ``arm`` and ``alpha`` (None where the policy has none); the first is what the
    server started with.
    """
    found: list[dict[str, Any]] = []
    for seen in run["status"]:
        tuner = seen.get("tuning")
        if tuner and (not found or tuner.get("arm") != found[-1]["arm"]):
            has_alpha = tuner["policy"] in ("lru", "utility", "marconi")
            alpha = tuner["alpha"] if has_alpha else None
            found.append({"request": seen["request"], "arm": tuner["arm"], "alpha": alpha})
    return found


def result_table(runs: Runs, costs: ModelCosts) -> str:
    """One row per workload and server."""
    rows = []
    for (strategy, name), of_workload in runs.items():
        for run in of_workload:
            seen = switches(run)
            rows.append(
                [
                    strategy,
                    name,
                    run["server"],
                    percent(hit_rate(run)),
                    percent(saved_share(run, costs)),
                    *_latency(run["ttft_s"]),
                    len(seen) - 1 if seen else "",
                    f"`{seen[-1]['arm']}`" if seen else "",
                    len(run["other_replies"]),
                ]
            )
    header = ["strategy", "workload", "server", "tokens hit", "FLOPs saved", "TTFT P50", "P95"]
    return table([*header, "switches", "in force at the end", "other replies"], rows)


def _latency(seconds: Sequence[float]) -> list[str]:
    cuts = statistics.quantiles(seconds, n=20)
    return [f"{1000 * cut:.0f} ms" for cut in (cuts[9], cuts[18])]


def part_table(runs: Runs) -> str:
    """Hit rates of the parts of workloads that have several."""
    rows = []
    for (strategy, name), of_workload in runs.items():
        for run in of_workload:
            starts = [part["request"] for part in run["parts"]]
            if len(starts) > 1:
                ends = [*starts[1:], run["requests"]]
                spans = zip(starts, ends, strict=True)
                rates = [percent(_rate(run, *span)) for span in spans]
                rows.append([strategy, name, run["server"], *rates])
    header = ["strategy", "workload", "server"]
    longest = max((len(row) for row in rows), default=len(header))
    return table([*header, *(f"part {n}" for n in range(1, longest - len(header) + 1))], rows)


def _rate(run: dict[str, Any], start: int, end: int) -> float:
    return sum(run["cached_tokens"][start:end]) / sum(run["prompt_tokens"][start:end])


def log_table(runs: Runs) -> str:
    """What tuned servers had in force, request by request."""
    rows = [
        [strategy, name, run["server"], seen["request"], f"`{seen['arm']}`"]
        for (strategy, name), of_workload in runs.items()
        for run in of_workload
        for seen in switches(run)
    ]
    return table(["strategy", "workload", "server", "seen after request", "in force"], rows)


def simulated_table(found: dict[str, dict[str, Replayed]], infinite: dict[str, float]) -> str:
    """One row per policy, one column per workload."""
    policies = list(next(iter(found.values())))
    rows: list[list[object]] = [
        [f"`{policy}`", *(percent(found[name][policy].hit_rate) for name in found)]
        for policy in policies
    ]
    rows.append(["cache without limit", *(percent(infinite[name]) for name in found)])
    return table(["policy", *found], rows)


def window_rates(run: dict[str, Any]) -> list[float]:
    return windows(run["prompt_tokens"], run["cached_tokens"])

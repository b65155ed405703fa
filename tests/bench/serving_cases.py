"""Arms, workloads and results for the tests of bench/serving."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
pytest.importorskip("numba")
pytest.importorskip("prometheus_client")
pytest.importorskip("scipy")

from bench.serving import arms, choice
from bench.serving.measured import Measured
from bench.serving.store import DONE

SYSTEM, ASK, TOOL = "s" * 80, "q" * 40, "t" * 24

ARMS = {arm.name: arm for arm in arms.KNOWN}


def workload(name, **fields):
    chosen, _ = choice.choose([name], "small", {}, {})
    return type(chosen[0])(**{**vars(chosen[0]), **fields})


def result(workload, arm, seed, hit_rate, ttft=1.0, metrics_hit_rate=None):
    """A finished run, as the store keeps it."""
    named = {"workload": workload, "arm": arm, "seed": seed, "state": DONE}
    seen = Measured([10_000] * 5, [round(10_000 * hit_rate)] * 5, [8] * 5, [ttft] * 5, 2.0, [])
    counted = hit_rate if metrics_hit_rate is None else metrics_hit_rate
    core = "RustUnifiedTreeCore"
    return {**named, "metrics_hit_rate": counted, "tree_core": core, **seen.as_json()}

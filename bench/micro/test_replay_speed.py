"""Speed of replays, once compiled.

    python -m pytest bench/micro/test_replay_speed.py --traces DIR -s

DIR (or the variable HYBRID_TRACES) holds `taubench.jsonl.gz` and `miniswe.jsonl.gz`, which
docs/paper.md tells how to make; what needs them is skipped without. Times are those of the
thread, and what is asserted is the fastest round: other load only makes rounds slower.
"""

import os
import resource
import time
from pathlib import Path

import pytest

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim import tuning
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.union_tree import compile_trace

pytestmark = pytest.mark.benchmark(timer=time.thread_time)

COSTS = load_model("paper-7b").costs
ADMISSION = parse_admission("marconi")
MOST_MICROSECONDS = 10.0
MOST_SECONDS, MOST_BYTES = 60.0, 2 * 2**30
ARMS = ("marconi", "utility", "lru", "density")
POLICIES = (
    "lru",
    "sglang+",
    "sglang",
    "utility",
    "marconi",
    "marconi-hyperbolic",
    "gdsf",
    "seglen",
    "tlru",
    "density",
)
BUDGETS = (4e9, 8e9, 16e9, 24e9, 32e9)


@pytest.fixture(scope="session")
def traces(request):
    folder = request.config.getoption("--traces") or os.environ.get("HYBRID_TRACES")
    if not folder:
        pytest.skip("needs stored traces: --traces DIR or HYBRID_TRACES=DIR")
    return Path(folder)


@pytest.fixture(scope="session")
def generated():
    return compile_trace(load_trace("gen:article-a"))


@pytest.fixture(scope="session")
def stored(traces):
    trees = {}

    def get(name, limit=None):
        path = traces / f"{name}.jsonl.gz"
        if not path.exists():
            pytest.skip(f"{path} does not exist")
        if (name, limit) not in trees:
            trees[name, limit] = compile_trace(load_trace(path, limit=limit))
        return trees[name, limit]

    return get


def alpha_grid(tree, total_bytes):
    budget = Budget(total_bytes)

    def serial(policy, admission):
        return SerialReplay(tree, COSTS, policy, admission, budget)

    start = tuning.parse_strategy("marconi:alpha=0")
    return tuning.best_alpha(tuning.ALPHAS, len(tree.input_len), COSTS, start, ADMISSION, serial)


@pytest.mark.parametrize(
    ("requests", "total_bytes", "most"), [(680, 6.25e9, 0.12), (1220, 10.99e9, 0.5)]
)
def test_alpha_grid_on_a_bootstrap_window(benchmark, stored, requests, total_bytes, most):
    tree = stored("taubench", requests)
    benchmark.pedantic(alpha_grid, (tree, total_bytes), rounds=7, warmup_rounds=1)
    assert benchmark.stats.stats.min < most


def test_alpha_grid_on_a_generated_trace(benchmark, generated):
    benchmark.pedantic(alpha_grid, (generated, 6 * 2**30), rounds=7, warmup_rounds=1)
    per_arm = benchmark.stats.stats.min / len(generated.input_len) / len(tuning.ALPHAS)
    assert per_arm < MOST_MICROSECONDS / 1e6


def replay(tree, policy, total_bytes):
    strategy = tuning.parse_strategy(policy)
    return tuning.run(tree, COSTS, strategy, ADMISSION, Budget(total_bytes))


def assert_fast_per_request(benchmark, tree, policy, total_bytes):
    benchmark.pedantic(replay, (tree, policy, total_bytes), rounds=15, warmup_rounds=1)
    microseconds = benchmark.stats.stats.min / len(tree.input_len) * 1e6
    benchmark.extra_info["us_per_request"] = round(microseconds, 2)
    print(f"\n{policy:10} {microseconds:5.1f} us per request")
    assert microseconds < MOST_MICROSECONDS


@pytest.mark.parametrize("policy", ARMS)
@pytest.mark.parametrize(("name", "total_bytes"), [("taubench", 6.25e9), ("miniswe", 16e9)])
def test_one_arm_on_a_stored_trace(benchmark, stored, name, total_bytes, policy):
    assert_fast_per_request(benchmark, stored(name), policy, total_bytes)


@pytest.mark.parametrize("policy", ARMS)
def test_one_arm_on_a_generated_trace(benchmark, generated, policy):
    assert_fast_per_request(benchmark, generated, policy, 6 * 2**30)


def test_many_policies_and_budgets_with_reading(benchmark, traces):
    """The peak is that of the process, so it includes the compiler if nothing was cached."""

    def everything():
        tree = compile_trace(load_trace(traces / "miniswe.jsonl.gz"))
        for policy in POLICIES:
            for total_bytes in BUDGETS:
                replay(tree, policy, total_bytes)

    benchmark.pedantic(everything, rounds=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\npeak memory {peak / 2**20:.0f} MiB")
    assert benchmark.stats.stats.min < MOST_SECONDS
    assert peak < MOST_BYTES

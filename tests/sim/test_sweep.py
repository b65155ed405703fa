"""`sweep`: the same figures as the engine, in a fixed order, in one process or several."""

import dataclasses

import numpy as np
import pytest

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim import Concurrency, Workload, load_trace, sweep, sweep_bounds
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.cells import CellError, ReplayCell, UncachedCell, uncached_ttft
from sglang_hybrid.sim.engine.cache import new_cache
from sglang_hybrid.sim.parallel import run_cells
from sglang_hybrid.sim.policy_spec import parse_policy
from sglang_hybrid.sim.replay import ConcurrentReplay
from sglang_hybrid.sim.sweep import BudgetSize, seeded
from sglang_hybrid.sim.tuning import parse_strategy, run
from sglang_hybrid.sim.union_tree import compile_trace

from .scenarios import letters, trace_of

MODEL = "nemotron-h-8b"
GENERATED = "gen:shared-prefix?groups=10&prompts=20&system=600&question=90&output=40"


@pytest.fixture(scope="module")
def trace():
    return load_trace(GENERATED, arrival="poisson:20")


@pytest.mark.parametrize("policy", ["lru", "utility:alpha=2", "auto", "marconi:alpha=tuned"])
def test_figures_are_those_of_the_engine(trace, policy):
    (result,) = sweep(
        trace, MODEL, policies=[policy], admissions=["marconi"], budgets=["2GiB"], pools_ratio=2
    )
    costs = load_model(MODEL).costs
    done = run(
        compile_trace(trace),
        costs,
        parse_strategy(policy),
        parse_admission("marconi"),
        Budget.split(2**31, costs, 2),
    )
    assert result.hits.tolist() == done.replay.served.hits.tolist()
    assert result.switches[-1].request == done.switches[-1].request
    assert result.hits.any()


def test_concurrent_figures_are_those_of_the_engine(trace):
    (result,) = sweep(
        trace, MODEL, policies=["utility"], budgets=["2GiB"], concurrent=Concurrency(8, 0.02)
    )
    load = Workload.of(trace, MODEL)
    cache = new_cache(
        load.tree,
        load.costs,
        parse_policy("utility"),
        parse_admission("shipped"),
        Budget(2**31),
    )
    timing = (*load.prefill.table(), load.prefill.overhead_seconds, load.prefill.floor_seconds)
    replay = ConcurrentReplay(cache, trace.arrival, timing, 8, 0.02)
    replay.advance(len(trace))
    assert result.hits.tolist() == replay.served.hits.tolist()
    assert result.ttft_seconds.tolist() == replay.ttft.tolist()


def test_order_is_that_of_the_arguments(trace):
    rows = sweep(
        trace,
        MODEL,
        policies=["lru", "none", "infinite", "utility"],
        admissions=["served", "marconi"],
        budgets=["2GiB", "1GiB"],
    )
    assert [(row.policy, row.admission, row.budget_bytes) for row in rows] == [
        ("none", None, None),
        *(
            row
            for admission in ("served", "marconi")
            for row in (
                ("lru", admission, 2**31),
                ("utility", admission, 2**31),
                ("lru", admission, 2**30),
                ("utility", admission, 2**30),
                ("infinite", admission, None),
            )
        ),
    ]


def test_processes_change_nothing(trace):
    options = {"policies": ["none", "lru", "density", "auto"], "budgets": ["1GiB", "20%"]}
    alone = sweep(trace, MODEL, **options, workers=1)
    together = sweep(trace, MODEL, **options, workers=2)
    assert together == alone
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a.hits, b.hits)
        assert np.array_equal(a.ttft_seconds, b.ttft_seconds)


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_name_the_replay(trace, workers):
    load = Workload.of(trace, MODEL)
    wrong = ReplayCell("odd", None, parse_admission("served"), Budget(1e9))
    with pytest.raises(CellError, match=r"^odd, served, 1000000000 bytes: "):
        run_cells(load, [UncachedCell(), UncachedCell(), wrong], workers=workers)


def test_share_of_what_an_infinite_cache_holds(trace):
    infinite, shared = sweep(trace, MODEL, policies=["infinite", "lru"], budgets=["25%"])[::-1]
    costs = load_model(MODEL).costs
    held = costs.held_bytes(infinite.resident_kv_tokens, infinite.resident_states)
    assert shared.budget_bytes == held / 4
    assert infinite.kv_tokens_evicted == 0


def test_no_cache_hits_nothing(trace):
    (result,) = sweep(trace, MODEL, policies=["none"])
    assert result.hit_tokens == result.flops_saved == result.resident_states == 0
    load = Workload.of(trace, MODEL)
    cold = load.prefill.seconds(trace.input_len, 0)
    assert result.ttft_seconds.tolist() == cold.tolist()


@pytest.mark.parametrize("running", [1, 3, 50])
@pytest.mark.parametrize("arrivals", [None, [0.0, 0.0, 0.01, 0.01, 0.5, 0.5, 0.5, 0.9]])
def test_times_without_a_cache_are_those_of_a_cache_that_never_hits(running, arrivals):
    texts = [letters(chr(1000 + 100 * i), 10 + 7 * i) + "|xyz"[: 1 + i % 4] for i in range(8)]
    trace = trace_of(texts, arrivals=arrivals)
    concurrent = Concurrency(running, 0.1)
    options = {"policies": ["none", "infinite"], "concurrent": concurrent}
    none, infinite = sweep(trace, MODEL, admissions=["marconi"], **options)
    assert infinite.hit_tokens == 0
    assert none.ttft_seconds == pytest.approx(infinite.ttft_seconds)
    load = Workload.of(trace, MODEL, concurrent=concurrent)
    assert len(uncached_ttft(load, none.ttft_seconds)) == len(trace)


def test_bounds_are_above_all_policies(trace):
    options = {"budgets": ["1GiB", "2GiB"], "admissions": ["served", "stock"]}
    bounds = sweep_bounds(trace, MODEL, **options)
    assert bounds[-1].policy == "full-kv"
    rows = sweep(trace, MODEL, policies=["lru", "offline", "density"], **options)
    for row in rows:
        (bound,) = (
            bound
            for bound in bounds
            if (bound.admission, bound.budget_bytes) == (row.admission, row.budget_bytes)
        )
        assert row.token_hit_rate <= bound.token_hit_rate + 1e-9 <= 1
        assert row.flops_saved <= bound.flops_saved * (1 + 1e-9)
        assert row.hit_tokens <= bounds[-1].token_hit_rate * row.input_tokens + 1e-6


def test_seed_reaches_policies_that_sample():
    assert seeded(parse_strategy("density"), 7).seed == 7
    assert seeded(parse_strategy("density:seed=3"), 7).seed == 3
    assert {arm.policy.seed for arm in seeded(parse_strategy("auto"), 7).arms} == {7}
    assert dataclasses.replace(parse_strategy("marconi:alpha=tuned")) == seeded(
        parse_strategy("marconi:alpha=tuned"), 7
    )


@pytest.mark.parametrize(
    ("text", "size", "share"),
    [("6GiB", 6 * 2**30, None), (" 12GB ", 12e9, None), ("10%", None, 0.1), ("2.5 %", None, 0.025)],
)
def test_budgets(text, size, share):
    budget = BudgetSize.parse(text)
    assert (budget.bytes, budget.share) == (size, share)


@pytest.mark.parametrize("text", ["", "0", "0%", "-1GiB", "x%", "%", "6XB", "inf%", "nan%"])
def test_budgets_that_are_refused(text):
    with pytest.raises(ValueError, match=r"budget .* is not allowed; allowed: .*6GiB"):
        BudgetSize.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["lur"]}, "unknown policy 'lur'.*infinite.*did you mean 'lru'"),
        ({"policies": ["full-kv"]}, "'full-kv' is no policy but a bound"),
        ({"admissions": ["servd"]}, "did you mean 'served'"),
        ({"budgets": ["much"]}, "'much' is not allowed"),
        ({"pools_ratio": 0}, "ratio 0 .* 0.9"),
        ({"workers": 0}, "0 workers are not allowed"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sweep(trace_of(["ab|c"]), MODEL, **options)


@pytest.mark.parametrize(("running", "seconds"), [(0, 0.1), (1, -1), (1, float("nan"))])
def test_concurrency_that_is_refused(running, seconds):
    with pytest.raises(ValueError, match="not allowed; allowed"):
        Concurrency(running, seconds)

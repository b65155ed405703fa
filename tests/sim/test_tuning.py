"""Strategies that tune themselves: what they choose, when, and that it can be repeated."""

import os
import subprocess
import sys

import pytest

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.replay import SerialReplay, count
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.tuning import Auto, Tuned, best_alpha, parse_strategy, run, saved_flops
from sglang_hybrid.sim.union_tree import compile_trace

COSTS = load_model("paper-7b").costs
BUDGET = Budget(6 * 2**30)
MARCONI = parse_admission("marconi")


@pytest.fixture(scope="module", params=["gen:article-a", "gen:article-b"])
def tree(request):
    return compile_trace(load_trace(request.param))


def saved(tree, strategy, admission=MARCONI, budget=BUDGET):
    replayed = run(tree, COSTS, parse_strategy(strategy), admission, budget)
    return saved_flops(COSTS, replayed.replay.served.hits), replayed


def test_auto_is_no_worse_than_lru_and_than_its_arms(tree):
    auto, replayed = saved(tree, "auto")
    assert auto > saved(tree, "lru")[0]
    best = max(saved(tree, arm)[0] for arm in ("utility", "density"))
    assert auto > 0.8 * best  # it starts with the other arm
    assert all(switch.request % Auto.period == 0 for switch in replayed.switches)


def test_one_arm_is_that_policy(tree):
    _, alone = saved(tree, "utility:alpha=1")
    _, arm = saved(tree, "auto:utility:alpha=1")
    assert (alone.replay.served.hits == arm.replay.served.hits).all()
    assert len(arm.switches) == 1


def test_auto_takes_no_state_that_its_admission_would_not_take(tree):
    strict = parse_admission("stock")
    assert {arm.admits(strict) for arm in parse_strategy("auto").arms} == {strict}
    shipped = parse_admission("shipped")
    (full, asked) = dict.fromkeys(arm.admits(shipped) for arm in parse_strategy("auto").arms)
    assert full == shipped
    assert (asked.prompt_end, asked.chunk_tokens, asked.ghost_forks) == (0, 0, 1)


def test_auto_leaves_an_arm_that_loses():
    tree = compile_trace(load_trace("gen:article-b"))
    strategy = "auto:marconi-hyperbolic:alpha=4/lru"
    auto, replayed = saved(tree, strategy)
    assert [switch.arm for switch in replayed.switches] == ["marconi-hyperbolic:alpha=4", "lru"]
    assert auto > 2 * saved(tree, "marconi-hyperbolic:alpha=4")[0]


def test_bootstrap_runs_as_lru_until_the_window_is_full(tree):
    _, replayed = saved(tree, "marconi:alpha=tuned")
    first, then = replayed.switches
    lru = run(tree, COSTS, parse_strategy("lru"), MARCONI, BUDGET).replay
    eviction = count(lru.cache, "FIRST_EVICTION")
    assert (first.request, first.alpha) == (0, 0.0)
    assert then.request >= Tuned.window * eviction
    head = slice(0, then.request)
    assert (replayed.replay.served.hits[head] == lru.served.hits[head]).all()


def test_a_window_as_long_as_the_time_before_the_first_eviction_still_tunes(tree):
    _, replayed = saved(tree, "marconi:alpha=tuned:window=1")
    assert len(replayed.switches) == 2


def test_without_evictions_nothing_is_tuned():
    tree = compile_trace(load_trace("gen:article-b"))
    _, replayed = saved(tree, "marconi:alpha=tuned", budget=Budget(1e15))
    assert len(replayed.switches) == 1


def test_of_equal_alphas_the_smallest_is_chosen():
    tree = compile_trace(load_trace("gen:article-a"))
    huge = Budget(1e15)  # no evictions: every alpha saves the same

    def serial(policy, admission):
        return SerialReplay(tree, COSTS, policy, admission, huge)

    policy = parse_strategy("marconi")
    assert best_alpha((2.0, 0.5, 1.0), 50, COSTS, policy, MARCONI, serial) == 0.5


PROGRAM = """
import zlib
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.tuning import parse_strategy, run
from sglang_hybrid.sim.union_tree import compile_trace
tree = compile_trace(load_trace("gen:article-a"))
costs = load_model("paper-7b").costs
done = run(tree, costs, parse_strategy("auto"), parse_admission("marconi"), Budget(6 * 2**30))
print(zlib.crc32(done.replay.served.hits.tobytes()), done.switches)
"""


def test_every_rank_would_decide_alike():
    # Nothing but the requests goes into a decision: no clock, no order of a set.
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("autos", "did you mean 'auto'"),
        ("auto:utility/belady", "unknown policy 'belady'"),
        ("auto:utility+nothing", "unknown admission 'nothing'"),
        ("marconi:alpha=tuned:window=0", "window = '0' is not allowed"),
        ("marconi:alpha=best", "alpha = 'best' is not allowed"),
    ],
)
def test_wrong_strategies_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_strategy(text)

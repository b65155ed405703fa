"""A replay that goes on with further requests does what it would have done with all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.engine import cache as arrays
from sglang_hybrid.sim.engine.cache import KV, NODES, STATES
from sglang_hybrid.sim.policy_spec import PolicySpec, parse_policy
from sglang_hybrid.sim.replay import SerialReplay, count, resident_states
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.union_tree import compile_trace

from .integrity import check_integrity
from .scenarios import COSTS, MARCONI, trace_of
from .strategies import POLICIES, random_case

# Counts of what is held and of what has happened; all but those of the index and the nodes.
COUNTS = (
    "KV",
    "STATES",
    "FIRST_STATES",
    "LEAVES_EVICTED",
    "INTERIORS_EVICTED",
    "KV_EVICTED",
    "KV_MADE",
    "KV_USED",
    "STATES_MADE",
    "STATES_USED",
    "VICTIMS",
    "USED_KINDS",
    "RANDOM",
)


def requests(trace: Trace, start: int, stop: int) -> Trace:
    """Some of the requests, with their whole sequences."""
    sequences = [trace.sequence(r) for r in range(start, stop)]
    part, count = slice(start, stop), stop - start
    return Trace(
        trace.name,
        trace.tokens_per_symbol,
        np.concatenate(sequences),
        np.cumsum([0, *map(len, sequences)]),
        np.full(count, -1),
        np.zeros(count, np.int64),
        trace.input_len[part],
        trace.output_len[part],
        trace.arrival[part],
        trace.session[part],
        trace.system_len[part],
    )


def in_windows(trace: Trace, size: int, held: int, *rules, check=None) -> tuple[list, SerialReplay]:
    """Replay in windows, knowing the last ``held`` requests; (hit, matched, cached) of each."""
    found: list[tuple[int, int, bool]] = []
    replay, start = None, 0
    for at in range(0, len(trace), size):
        stop = min(at + size, len(trace))
        first = max(0, min(at, stop - held))
        tree = compile_trace(requests(trace, first, stop))
        if replay is None:
            replay = SerialReplay(tree, *rules)
        else:
            replay.go_on_with(tree, first - start)
        if check:
            check(replay)
        replay.advance(stop - first)
        if check:
            check(replay)
        start = first
        served = replay.served
        columns = [c[at - first :].tolist() for c in (served.hits, served.matched, served.cached)]
        found += zip(*columns, strict=True)
    return found, replay


def at_once(trace: Trace, *rules) -> tuple[list, SerialReplay]:
    replay = SerialReplay(compile_trace(trace), *rules)
    replay.advance(len(trace))
    served = replay.served
    columns = (served.hits.tolist(), served.matched.tolist(), served.cached.tolist())
    return list(zip(*columns, strict=True)), replay


def check_same(trace: Trace, size: int, *rules) -> None:
    expected, whole = at_once(trace, *rules)
    found, parts = in_windows(trace, size, len(trace), *rules)
    assert found == expected
    assert resident_states(parts.cache) == resident_states(whole.cache)
    for name in COUNTS:
        assert count(parts.cache, name) == count(whole.cache, name), name
    assert (parts.cache.table.cells == whole.cache.table.cells).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1, 4])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_windows_of_random_cases(policy, size, seed):
    case = random_case(seed, policy=policy, concurrent=False)
    check_same(case.trace, size, case.costs, case.policy, case.admission, case.budget)


@pytest.mark.parametrize("policy", ["density", "gdsf", "utility"])
def test_windows_of_long_random_cases(policy):
    for seed in range(3):
        case = random_case(seed, policy=policy, requests=600, concurrent=False)
        check_same(case.trace, 100, case.costs, case.policy, case.admission, case.budget)


MODEL = load_model("paper-7b").costs
TWO_POOLS = Budget.split(6 * 2**30, MODEL, 0.9)


@pytest.mark.parametrize("budget", [Budget(6 * 2**30), TWO_POOLS], ids=["one", "two"])
@pytest.mark.parametrize("admission", ["served", "shipped"])
@pytest.mark.parametrize("policy", ["lru", "utility", "marconi", "density"])
def test_windows_of_a_whole_workload(policy, admission, budget):
    trace = load_trace("gen:article-a")
    rules = MODEL, parse_policy(policy), parse_admission(admission), budget
    check_same(trace, 100, *rules)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), held=st.integers(1, 12), size=st.integers(1, 5))
def test_what_the_held_requests_do_not_pass_is_freed(policy, seed, held, size):
    case = random_case(seed, policy=policy, concurrent=False)

    def check(replay):
        check_integrity(replay)
        cache = replay.cache
        kv = int(cache.counts[KV])
        assert kv <= tokens_of_tree(replay)
        if case.budget is not None and not case.budget.has_pools:
            used = case.costs.kv_bytes_per_token * kv
            used += case.costs.state_bytes * int(cache.counts[STATES])
            assert used <= case.budget.total_bytes

    in_windows(
        case.trace,
        size,
        held,
        case.costs,
        case.policy,
        case.admission,
        case.budget,
        check=check,
    )


def tokens_of_tree(replay: SerialReplay) -> int:
    """Tokens of the union tree."""
    nodes = replay.cache.nodes[1 : replay.cache.counts[NODES]]
    depth = replay.cache.nodes["depth"]
    return int((nodes["depth"] - depth[nodes["parent"]]).sum())


def test_arrays_do_not_grow_with_the_requests_served():
    trace = load_trace("gen:article-a")
    sizes = []
    in_windows(
        trace,
        50,
        200,
        MODEL,
        parse_policy("utility"),
        parse_admission("shipped"),
        Budget(6 * 2**30),
        check=lambda replay: sizes.append(len(replay.cache.nodes)),
    )
    assert max(sizes) < 3 * sizes[8]  # from the fifth window on 200 requests are held


def test_a_state_that_only_forgotten_requests_pass_is_freed():
    trace = trace_of(["aaaa|b", "cccc|d", "aaaa|bx", "cccc|dy"])
    _, held = in_windows(trace, 1, 4, COSTS, PolicySpec("lru"), MARCONI, None)
    assert resident_states(held.cache) == [5, 5, 6, 6]
    # A request finds what those that were held with it pass.
    _, some = in_windows(trace, 1, 3, COSTS, PolicySpec("lru"), MARCONI, None)
    assert resident_states(some.cache) == [5, 5, 6, 6]
    _, one = in_windows(trace, 1, 1, COSTS, PolicySpec("lru"), MARCONI, None)
    assert resident_states(one.cache) == [6]


def test_ages_go_on_counting():
    # Room for three states: at `eeee` the one that was used longest ago must go.
    texts = ["aaaa|b", "cccc|d", "aaaa|bx", "eeee|f", "cccc|dy"]
    budget = Budget(0.0, 3, 1000)
    rules = COSTS, PolicySpec("lru"), MARCONI, budget
    found, _ = in_windows(trace_of(texts), 1, 5, *rules)
    assert found == at_once(trace_of(texts), *rules)[0]


def test_requests_that_were_not_served_cannot_be_left():
    trace = trace_of(["aa|b", "cc|d"])
    replay = SerialReplay(compile_trace(trace), COSTS, PolicySpec("lru"), MARCONI, None)
    replay.advance(1)
    with pytest.raises(ValueError, match="served 1 of 2 requests"):
        replay.go_on_with(compile_trace(trace), 0)
    replay.advance(2)
    with pytest.raises(ValueError, match="a tree of 1 cannot follow"):
        replay.go_on_with(compile_trace(trace.head(1)), 0)
    with pytest.raises(ValueError, match="the first 3 are dropped"):
        replay.go_on_with(compile_trace(trace), 3)


def test_all_fields_of_a_node_are_carried_or_made_anew():
    """A new field must be carried on, like the others, unless `carry` knows better."""
    trace = trace_of(["aaaa|b", "aaaa|bcc|d", "aaax|y", "aaaa|bcc|dz"] * 3)
    rules = COSTS, PolicySpec("gdsf"), MARCONI, Budget(60.0)
    _, replay = at_once(trace, *rules)
    old = replay.cache
    replay.go_on_with(compile_trace(trace), 0)
    new = replay.cache
    made_anew = {
        "owner", "child", "next", "prev", "is_dirty", "indexed", "bucket",
        "heap_child", "heap_next", "heap_prev", "saved", "freed", "weight",
    }  # fmt: skip
    places = {}
    for which, cache in (("old", old), ("new", new)):
        nodes = cache.nodes[: cache.counts[NODES]]
        places[which] = {
            int(nodes["depth"][n]): nodes[n] for n in np.flatnonzero(nodes["slot"] >= 0)
        }
    assert places["old"].keys() == places["new"].keys() and len(places["old"]) > 1
    for depth, node in places["old"].items():
        for name in set(arrays.NODE.names) - made_anew - {"parent"}:
            assert places["new"][depth][name] == node[name], (depth, name)

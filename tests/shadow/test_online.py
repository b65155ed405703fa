"""Shadow caches that step window by window do what a replay of all requests does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim.integrity import check_integrity

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.shadow.arms import arms_for, bootstrap_arms
from sglang_hybrid.shadow.messages import Settings
from sglang_hybrid.shadow.online import OnlineShadows, trace_of
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.replay import SerialReplay, count
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.tuning import best_alpha, parse_policy, parse_strategy, saved_flops
from sglang_hybrid.sim.union_tree import compile_trace

from .conversations import records, split

COSTS = load_model("paper-7b").costs
ADMISSIONS = ("served", "shipped", "system")
BUDGETS = {
    "bytes": Budget(40 * (COSTS.state_bytes + 500 * COSTS.kv_bytes_per_token)),
    "pools": Budget(0.0, 40, 20_000),
}


def settings(admission="shipped", budget="pools", policy="auto", **others) -> Settings:
    rules = parse_admission(admission)
    arms = others.pop("arms", None) or arms_for(policy, rules)
    return Settings(COSTS, rules, BUDGETS[budget], arms, **others)


def replayed(known: Settings, window) -> np.ndarray:
    """Hits of a replay of all requests, int64[arms, W]."""
    tree = compile_trace(trace_of(window))
    hits = []
    for arm in known.arms:
        admission = arm.admits(known.admission)
        replay = SerialReplay(tree, known.costs, arm.policy, admission, known.budget)
        replay.advance(len(window))
        hits.append(replay.served.hits)
    return np.array(hits)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_windows_are_served_as_if_they_were_one(size, admission, budget):
    known = settings(admission, budget)
    window = records(1, 60 if size == 1 else 300)
    expected = replayed(known, window)
    assert expected.sum(axis=1).min() > 0
    shadows = OnlineShadows(known)
    at = 0
    for part in split(window, size):
        savings = shadows.step(part)
        found = [replay.served.hits[-len(part) :] for replay in shadows.replays]
        assert (np.array(found) == expected[:, at : at + len(part)]).all()
        assert savings.hits == tuple(expected[:, at : at + len(part)].sum(axis=1))
        at += len(part)
    assert any(count(replay.cache, "VICTIMS") for replay in shadows.replays)


def test_arms_differ():
    window = records(1, 300)
    sums = replayed(settings(), window).sum(axis=1)
    assert len(set(sums.tolist())) > 4


@pytest.mark.parametrize("limits", [(50, 10_000), (1000, 500)])
def test_a_bounded_history_keeps_the_shadows_consistent(limits):
    known = settings(max_requests=limits[0], max_pages=limits[1])
    shadows = OnlineShadows(known)
    sizes = []
    for part in split(records(2, 600), 30):
        shadows.step(part)
        for replay in shadows.replays:
            check_integrity(replay)
            assert count(replay.cache, "STATES") <= known.budget.state_slots
            assert count(replay.cache, "KV") <= known.budget.kv_tokens
            assert len(replay.cache.requests) == len(shadows.ring) <= limits[0]
        sizes.append(max(len(replay.cache.nodes) for replay in shadows.replays))
    assert max(sizes[10:]) < 2 * max(sizes[5:10])


def test_savings_are_flops_or_tokens():
    window = records(3, 100)
    flops, tokens = (OnlineShadows(settings(objective=name)) for name in ("flops", "tokens"))
    saved, hit = flops.step(window), tokens.step(window)
    assert saved.hits == hit.hits == tuple(map(int, hit.saved))
    for value, replay in zip(saved.saved, flops.replays, strict=True):
        assert value == saved_flops(COSTS, replay.served.hits)
    assert hit.realised == hit.realised_hits == window.hit.sum()
    assert saved.realised == saved_flops(COSTS, window.hit)


def test_clear_starts_over():
    known = settings()
    shadows = OnlineShadows(known)
    first = shadows.step(records(4, 100))
    shadows.step(records(5, 100))
    shadows.clear()
    assert shadows.tables() == {}
    assert shadows.step(records(4, 100)) == first


def test_an_empty_window_changes_nothing():
    shadows, plain = OnlineShadows(settings()), OnlineShadows(settings())
    assert shadows.step(records(4, 0)).saved == ()
    shadows.step(records(4, 50))
    assert set(shadows.step(records(4, 0)).saved) == {0.0}
    plain.step(records(4, 50))
    assert shadows.step(records(5, 50)) == plain.step(records(5, 50))


def test_a_window_that_fills_the_history_is_served_whole():
    shadows = OnlineShadows(settings(max_requests=10))
    whole = OnlineShadows(settings())
    assert shadows.step(records(4, 100)) == whole.step(records(4, 100))


def test_what_density_learns_is_kept_over_windows():
    known = settings()
    shadows = OnlineShadows(known)
    window = records(6, 400)
    for part in split(window, 50):
        shadows.step(part)
    tables = shadows.tables()
    names = {known.arms[i].name for i in tables}
    assert names == {"density", "density+asked"}
    assert all(int(table.events[0]) > 32 for table in tables.values())


def test_search_finds_the_alpha_that_the_replay_finds():
    known = settings("marconi", arms=bootstrap_arms(), is_bootstrap=True)
    shadows = OnlineShadows(known)
    window = records(7, 300)
    for part in split(window, 100):
        assert shadows.step(part).saved == ()
    saved = shadows.search().saved
    tree = compile_trace(trace_of(window))

    def serial(policy, admission):
        return SerialReplay(tree, COSTS, policy, admission, known.budget)

    alphas = [arm.policy.alpha for arm in known.arms]
    policy = parse_policy("marconi")
    best = best_alpha(alphas, len(window), COSTS, policy, known.admission, serial)
    assert alphas[saved.index(max(saved))] == best


def test_search_without_windows_saves_nothing():
    assert set(OnlineShadows(settings(is_bootstrap=True)).search().saved) == {0.0}


def test_the_trace_of_a_window_is_that_of_its_record(tmp_path):
    shadows = OnlineShadows(settings(is_bootstrap=True))
    window = records(8, 200)
    shadows.step(window)
    with (tmp_path / "record.jsonl").open("w") as file:
        shadows.ring.to_jsonl(file, bytes(16))
    one = compile_trace(load_trace(tmp_path / "record.jsonl", strict=True))
    other = compile_trace(trace_of(window))
    for name in ("parent", "depth", "fork_time", "prompt_node", "end_node", "system_len"):
        assert (getattr(one, name) == getattr(other, name)).all(), name


def test_namespaces_share_nothing():
    window = records(8, 1)
    two = type(window).joined([window, replace(window, namespace=window.namespace + np.uint64(1))])
    tree = compile_trace(trace_of(two))
    assert tree.parent[tree.path(0)[-1]] == tree.parent[tree.path(1)[-1]] == 0
    assert tree.path(0)[-1] != tree.path(1)[-1]
    same = compile_trace(trace_of(type(window).joined([window, window])))
    assert same.path(0)[-1] == same.path(1)[-1]


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ValueError, match="objective 'hits'"):
        OnlineShadows(settings(objective="hits"))
    with pytest.raises(ValueError, match="'offline' knows the future"):
        OnlineShadows(settings(arms=parse_strategy("auto:lru/offline").arms))

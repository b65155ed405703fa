"""Mistakes of published implementations of prefix caching for hybrid models."""

import numpy as np
import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec

from .scenarios import ENDS, LRU, MARCONI, letters, run, trace_of
from .strategies import random_case


def exact(kind, **options):
    return PolicySpec(kind, bucket_width=0.0, **options)


@pytest.mark.parametrize("policy", [exact("marconi", alpha=1e6), exact("gdsf"), exact("density")])
def test_a_deep_leaf_saves_the_whole_cost_of_its_tokens(replay, policy):
    # Parts of the cost must not be set off against other parts: F(40) - F(20) = 1220 of
    # 30 bytes is worth more than F(5) = 30 of 15. Nothing else may go.
    costs = ModelCosts(1.0, 10.0, 1.0, 1.0)
    fork = Admission(decode_end=1)
    texts = [letters("A", 19) + "|z", letters("A", 19) + "z" + letters("a", 19) + "|9"]
    out = run(
        replay, *texts, "0123|4", "5|6", policy=policy, admission=fork, costs=costs, budget=85
    )
    assert out.hits[1] == 20
    assert out.victims == [(3, 5, True)]  # 40 + 20 and 5 + 10 bytes used, 12 asked for


def test_the_bytes_are_those_that_eviction_frees(replay):
    # The leaf at 42 frees 2 + 10 bytes for F(42) - F(40) = 2 FLOPs (1/6 each); over the KV
    # of its whole path, 52 bytes, it would be the worst by far. `xy|` saves 1 of 11.
    out = run(
        replay,
        letters("A", 40) + "|",
        letters("A", 40) + "9|0",
        "x|",
        "y|",
        policy=exact("marconi", alpha=1e6),
        budget=42 + 20 + 11,
    )
    assert out.hits == [0, 40, 0, 0]
    assert out.victims == [(3, 1, True)]


@pytest.mark.parametrize("seed", range(0, 300, 3))
def test_what_goes_is_charged_to_the_victim(replay, seed):
    case = random_case(seed)
    out = case.replay(replay)
    kv, state = case.costs.kv_bytes_per_token, case.costs.state_bytes
    assert out.kv_tokens == out.kv_tokens_inserted - out.kv_tokens_evicted
    assert len(out.states) == out.states_made - out.state_evictions
    assert out.used_bytes == kv * out.kv_tokens + state * len(out.states)
    if case.budget is not None and not case.budget.has_pools:
        assert out.used_bytes <= case.budget.total_bytes
    elif case.budget is not None:
        assert out.kv_tokens <= case.budget.kv_tokens
        assert len(out.states) <= case.budget.state_slots


def test_a_match_ends_where_the_tokens_differ(replay):
    # `abX...` leaves `abcdefg` inside its only edge; what follows there is no match, equal
    # tokens at equal depths or not.
    out = run(replay, "abcdef|g", "abXdefgh|i", "abcdefgX|", "abXdefghiY|", admission=MARCONI)
    assert out.matched == [0, 2, 7, 9]
    assert out.hits == [0, 0, 7, 9]


@pytest.mark.parametrize("kind", ["lru", "utility", "marconi", "gdsf", "seglen", "tlru", "density"])
def test_the_matched_path_is_pinned_while_room_is_made(replay, kind):
    # `abc` is cheaper, smaller and older than the other one, and just matched.
    policy = exact(kind, threshold=100)
    out = run(replay, "ab|c", "defghijkl|m", "abcX|Y", policy=policy, budget=13 + 20 + 11)
    assert out.hits == [0, 0, 3]
    assert out.victims == [(2, 10, True)]


def hyperbola_texts():
    """One of age 40 worth 10/20; one of age 8 worth 9/19; the young one worth 30/40."""
    texts = [letters("A", 10) + "|"] + ["~|"] * 31 + [letters("a", 9) + "|"]
    texts += ["~|"] * 6 + [letters("À", 30) + "|", "!|"]
    return texts


@pytest.mark.parametrize("recency, depth", [("linear", 10), ("hyperbolic", 9)])
def test_recency_is_linear_in_age_unless_asked_for(replay, recency, depth):
    # Ages at r = 40: 40, 8, 1 and 2 for `~` (renewed all along; worth 1/11), which goes
    # first: its efficiency is 0, those of the others (10/20 - 1/11)/(30/40 - 1/11) = 0.62,
    # 0.58 and 1, times alpha = 4.
    policy = exact("marconi", alpha=4.0, recency=recency)
    budget = 20 + 11 + 19 + 40
    out = run(replay, *hyperbola_texts(), policy=policy, budget=budget)
    assert out.victims == [(40, 1, True)]
    # Where two bytes more are asked for, a second one goes. Recency of the three left:
    #   linear:     0, 32/40, 39/40
    #   hyperbolic: 0, (1/8 - 1/40)/(1 - 1/40) = 0.103, 1
    # Efficiency, times 4: 4 * (10/20 - 9/19)/(30/40 - 9/19) = 0.38, 0, 4. So linear has the
    # oldest at 0.38 < 0.8, hyperbolic the second at 0.103 < 0.38.
    out = run(replay, *hyperbola_texts()[:-1], "#$%|", policy=policy, budget=budget)
    assert out.victims == [(40, 1, True), (40, depth, True)]


def test_clocks_that_stand_still_divide_nothing(replay):
    # Everything but the new states was used in this very request.
    every = Admission(decode_end=1, prompt_end=1, chunk_tokens=2, first_victims=True)
    for recency in ("linear", "hyperbolic"):
        policy = PolicySpec("marconi", alpha=1.0, recency=recency, refresh="path")
        out = run(replay, "abcd|ef", "abcdefgh|ij", policy=policy, admission=every, budget=45)
        assert out.hits == [0, 6]


def test_savings_reach_to_the_nearest_live_state(replay):
    # After r1 there are states at 20 and 22, at r3 both of age 2. Losses: at 22
    # ln(2/12) - ln 2 = -2.48, at 20 (hit once, superseded) -1.96, `xyz` ln(3/13) = -1.47.
    policy = exact("utility", alpha=1.0)
    texts = [letters("A", 20) + "|", letters("A", 20) + "0|1", "xy|z", "p|q"]
    first = run(replay, *texts, policy=policy, budget=22 + 20 + 13)
    assert first.victims[0] == (3, 22, True)
    # If the one at 20 has gone (by the cap on a path), the other saves 22 FLOPs over 32
    # bytes: ln(22/32) - ln 2 = -1.07, and `xyz` goes.
    capped = Admission(decode_end=1, max_states_per_path=1)
    out = run(replay, *texts, policy=policy, admission=capped, budget=22 + 10 + 13 + 2)
    assert out.victims == [(1, 20, False), (3, 3, True)]


def test_a_replay_leaves_its_trace_alone_and_repeats_itself(replay):
    case = random_case(11, policy="density")
    arrays = {k: v.copy() for k, v in vars(case.trace).items() if isinstance(v, np.ndarray)}
    first = case.replay(replay)
    random_case(12).replay(replay)
    again = case.replay(replay)
    for name in vars(first):
        assert np.array_equal(getattr(first, name), getattr(again, name)), name
    for name, before in arrays.items():
        assert np.array_equal(before, getattr(case.trace, name), equal_nan=True)


@pytest.mark.parametrize("kind", ["utility", "gdsf", "density"])
def test_past_hits_pin_nothing_for_ever(replay, kind):
    # `abc` is used ten times and never again; a hundred others follow, each used once more,
    # of the same size: long before their end the old one has gone.
    texts = ["ab|c"] + [f"abc{c}|" for c in letters("A", 10)]
    for i in range(100):
        name = chr(1000 + i)
        texts += [f"{name}1|2", f"{name}12{name}|"]
    texts.append("abcX|")
    hot = run(replay, *texts[:11], "abcX|", policy=exact(kind), budget=100)
    assert hot.hits[-1] == 3
    out = run(replay, *texts, policy=exact(kind), budget=100)
    assert out.hits[-1] == 0


def test_a_budget_in_gigabytes_with_real_costs(replay):
    costs = load_model("paper-7b").costs
    budget = Budget(2 * costs.state_bytes + 8 * costs.kv_bytes_per_token)
    out = replay(trace_of(["ab|c", "de|f", "ghi|j"]), costs, LRU, ENDS, budget)
    assert out.victims == [(2, 3, True)]

"""Figures of a replay: by hand for three requests, and from the hits of many."""

import json

import numpy as np
import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim import load_trace, sweep
from sglang_hybrid.sim.prefill_time import PrefillTime
from sglang_hybrid.sim.results import LENGTH_EDGES, InForce
from sglang_hybrid.sim.tuning import Switch
from sglang_hybrid.sim.workload import Workload

from .scenarios import trace_of

COSTS = ModelCosts(1.0, 10.0, 1.0, 1.0)  # F(L) = (1 + L) L
SECOND_PER_TOKEN = PrefillTime(np.array([0.0, 100.0]), np.array([0.0, 100.0]))
GENERATED = "gen:shared-prefix?groups=6&prompts=12&system=1500&question=700&output=64"


def by_hand(**options):
    """The second continues the first; of the third KV is there, but no state."""
    trace = trace_of(["abcd|ef", "abcdefgh|", "abcx|"])
    (result,) = sweep(
        trace,
        COSTS,
        policies=["lru"],
        admissions=["custom:decode_end=1"],
        prefill_time=SECOND_PER_TOKEN,
        **options,
    )
    return result


def test_figures_of_three_requests():
    result = by_hand(budgets=["1000B"])
    assert result.hits.tolist() == [0, 6, 0]
    assert (result.requests, result.input_tokens, result.hit_tokens) == (3, 16, 6)
    assert result.token_hit_rate == 6 / 16
    assert result.request_hit_rate == 1 / 3
    assert result.flops_saved == 42
    assert result.flops_saved_share == 42 / (20 + 72 + 20)
    assert result.ttft_seconds.tolist() == [4, 2, 4]
    assert result.ttft.p50 == 4
    assert result.tokens_lost_to_missing_state == 3
    assert result.kv_reused_share == 6 / 9
    assert result.states_reused_share == 1 / 3
    assert (result.resident_states, result.resident_kv_tokens) == (3, 9)
    assert (result.states_evicted_leaf, result.states_evicted_interior) == (0, 0)
    assert (result.kv_tokens_evicted, result.rejected) == (0, 0)
    assert (result.budget_bytes, result.state_slots, result.ratio) == (1000, None, None)


def test_evictions_and_rejections():
    # The second request's 8 tokens and state do not fit beside the state it hits; the third
    # evicts that state with the "def" behind the "abc" it shares.
    result = by_hand(budgets=["18B"])
    assert result.hits.tolist() == [0, 6, 0]
    assert result.states_evicted_interior == 0
    assert result.states_evicted_leaf == 1
    assert result.kv_tokens_evicted == 3
    assert result.rejected == 1
    assert (result.resident_states, result.resident_kv_tokens) == (1, 4)
    assert by_hand(budgets=["12B"]).rejected == 3


def test_two_pools():
    result = by_hand(budgets=["1000B"], pools_ratio=1)
    assert (result.state_slots, result.kv_tokens, result.ratio) == (50, 500, 1)


def test_all_figures_follow_from_the_hits():
    trace = load_trace(GENERATED)
    (result,) = sweep(trace, "nemotron-h-8b", policies=["utility"], budgets=["2GiB"])
    load = Workload.of(trace, "nemotron-h-8b")
    hits, inputs = result.hits, trace.input_len
    assert 0 < hits.sum() < inputs.sum()
    assert result.token_hit_rate == hits.sum() / inputs.sum()
    saved = [load.costs.prefill_flops(int(hit)) for hit in hits]
    whole = [load.costs.prefill_flops(int(tokens)) for tokens in inputs]
    assert result.flops_saved == pytest.approx(sum(saved))
    assert result.flops_saved_share == pytest.approx(sum(saved) / sum(whole))
    seconds = load.prefill.seconds(inputs, hits)
    assert list(result.ttft) == pytest.approx(np.percentile(seconds, [50, 95, 99]))
    late = result.figures_from(load, 40)
    assert late.token_hit_rate == hits[40:].sum() / inputs[40:].sum()
    assert late.requests == len(trace) - 40


def test_buckets_by_length_add_up():
    (result,) = sweep("gen:article-a", "nemotron-h-8b", policies=["lru"], budgets=["8GiB"])
    inputs = load_trace("gen:article-a").input_len
    assert [bucket.from_tokens for bucket in result.by_length] == [0, 1024, 4096, 8192]
    for bucket in result.by_length:
        assert bucket.from_tokens in LENGTH_EDGES
        inside = (inputs >= bucket.from_tokens) & (inputs < bucket.to_tokens)
        assert bucket.requests == inside.sum()
        assert bucket.token_hit_rate == result.hits[inside].sum() / inputs[inside].sum()
        assert bucket.mean_ttft_seconds == pytest.approx(result.ttft_seconds[inside].mean())
    assert sum(bucket.requests for bucket in result.by_length) == result.requests


def test_json_has_plain_values_only():
    result = by_hand(budgets=["1000B"]).to_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["ttft"] == {"p50": 4.0, "p95": 4.0, "p99": 4.0}
    assert result["switches"] == [{"request": 0, "arm": "lru", "alpha": None}]
    assert "hits" not in result


@pytest.mark.parametrize(
    ("arm", "alpha"),
    [
        ("utility", 0.5),
        ("marconi:bucket_width=0", 0.5),
        ("utility+ghost", 0.5),
        ("lru", None),
        ("density:seed=1", None),
    ],
)
def test_alpha_is_told_where_it_means_something(arm, alpha):
    assert InForce.of(Switch(3, arm, 0.5)) == InForce(3, arm, alpha)

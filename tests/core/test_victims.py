"""The victim index agrees with a brute-force scan, for every policy and width."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.core.policies import LRU, Marconi, Utility
from sglang_hybrid.core.policy_names import make_policy
from sglang_hybrid.core.victims import VictimIndex, VictimTiers

policies = st.sampled_from([LRU(), Utility(0.5), Utility(2.0), Marconi(0.0), Marconi(1.0)])
widths = st.sampled_from([0.0, 0.25, 1.0])
operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "discard", "evict"]),
        st.integers(0, 12),  # key
        st.integers(-8, 8),  # weight, in eighths
        st.integers(1, 40),  # depth
    ),
    max_size=60,
)


def scan(policy, width, members, now):
    """Oldest member of each bucket, then the lowest loss; written without the index."""
    buckets = {}
    for key, (weight, last, depth) in members.items():
        bucket = weight if width == 0 else math.floor(weight / width)
        buckets.setdefault(bucket, []).append((last, depth, key, weight))
    heads = [min(bucket) for bucket in buckets.values()]
    losses = policy.losses([(*head, 0) for head in heads], now)
    return min(zip(losses, heads, strict=True))[1][2]


@given(policies, widths, operations)
def test_same_victims_as_a_scan(policy, width, ops):
    index, members = VictimIndex(policy, width), {}
    for now, (op, key, eighths, depth) in enumerate(ops, start=1):
        if op == "put":
            members[key] = (eighths / 8, now - 1, depth)
            index.put(key, *members[key])
        elif op == "discard":
            members.pop(key, None)
            index.discard(key)
        elif members:
            victim = index.victim(now)
            assert victim == scan(policy, width, members, now)
            members.pop(victim)
            index.discard(victim)
        assert len(index) == len(members)
    now = len(ops) + 1
    expected = []
    for key in index.order(now):
        expected.append(scan(policy, width, members, now))
        assert key == expected[-1]
        members.pop(key)
    assert not members


def test_an_updated_candidate_leaves_no_trace_in_its_old_bucket():
    index = VictimIndex(LRU(), 0.25)
    for last in range(1000):
        index.put(7, 0.0, last, 1)
    index.put(8, 0.0, 500, 1)
    assert index.victim(2000) == 8
    assert sum(len(heap) for heap in index._heaps.values()) < 200


def test_ten_thousand_candidates_share_few_buckets():
    index = VictimIndex(Utility(0.5), 0.25)
    for key in range(10_000):
        weight = index.policy.weight(1e9 * (1 + key % 997), 1e6, hits=key % 5)
        index.put(key, weight, key, 1)
    assert index.num_buckets < 50


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.1, 1e6)), min_size=1, max_size=30))
def test_marconi_with_alpha_zero_evicts_as_lru(items):
    lru, marconi = VictimIndex(LRU(), 0.25), VictimIndex(Marconi(0.0), 0.25)
    for key, (last, flops) in enumerate(items):
        lru.put(key, LRU().weight(flops, 1.0), last, key)
        marconi.put(key, Marconi(0.0).weight(flops, 1.0), last, key)
    assert lru.order(100) == marconi.order(100)


def test_tiers_empty_one_after_another():
    tiers = VictimTiers([VictimIndex(LRU(), 1.0), VictimIndex(LRU(), 1.0)])
    tiers.put(1, 1, 0.0, 1, 1)
    tiers.put(2, 0, 0.0, 9, 1)
    assert tiers.order(10) == [2, 1]
    tiers.put(2, 1, 0.0, 9, 1)
    assert tiers.victim(10) == 1
    tiers.discard(1)
    tiers.discard(1)
    assert tiers.order(10) == [2] and len(tiers) == 1 and 2 in tiers


def test_unknown_policy_and_alpha_out_of_range_are_refused():
    with pytest.raises(ValueError, match="fifo"):
        make_policy("fifo", 1.0)
    for alpha in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="alpha"):
            make_policy("utility", alpha)


@pytest.mark.parametrize("width", [5e-324, 1e-300, 1e-9, 1e308])
def test_any_bucket_width_works(width):
    index = VictimIndex(LRU(), width)
    for key, weight in enumerate((-40.0, 0.0, 1e7)):
        index.put(key, weight, key, 1)
    assert index.order(10) == [0, 1, 2]


def test_a_negative_bucket_width_is_refused():
    for width in (-0.1, math.nan):
        with pytest.raises(ValueError, match="bucket_width"):
            VictimIndex(LRU(), width)

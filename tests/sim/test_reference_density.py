"""Sampled hit density, by hand."""

import pytest

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.sim.policy_spec import PolicySpec

from .reference_policies import AGE, Density, suffixes
from .reference_tree import State
from .scenarios import letters, run


def test_density_starts_with_the_age_and_flops_per_byte(replay):
    # 256 draws meet both states. Equal but for the age: 1/(2 * 2) against 1/(2 * 1).
    policy = PolicySpec("density", seed=3)
    out = run(replay, "ab|c", "de|f", "gh|i", "defX|", policy=policy, budget=30)
    assert (out.victims[0], out.hits) == ((2, 3, True), [0, 0, 0, 3])
    # 20/30 / 4 = 0.17 for the older and longer one, 3/13 / 2 = 0.12 for the newer.
    out = run(replay, letters("A", 20) + "|", "ab|c", "x|y", policy=policy, budget=44)
    assert out.victims == [(2, 3, True)]


def test_the_random_numbers_are_splitmix64():
    density = Density(0)
    assert density.next_random() == 0xE220A8397B1DCDAF  # published first value of seed 0


def test_densities_are_learned_from_hits_and_evictions():
    # 32 hits at age 1 by branch leaves that were never hit before: H = N = 32 in bin 0,
    # R = 32 / 2 * (age_1 - age_0). Prior 1/2, strength 1: class and pool see the same.
    density, state = Density(0), State(Kind.BRANCH, last=4)
    for _ in range(31):
        density.event(state, is_leaf=True, now=5, is_hit=True)
    assert density.of(state, True, 5) == 0.5
    density.event(state, is_leaf=True, now=5, is_hit=True)
    spent = 16 * (2**0.25 - 1)
    pool = (32 + 1) / (spent + 1 / 0.5)
    assert density.of(state, True, 5) == pytest.approx((32 + 1) / (spent + 1 / pool))
    # Another class of the same pool knows the pool's, one of another pool the prior.
    later = State(Kind.BRANCH, last=4, turn=1)
    assert density.of(later, True, 5) == pytest.approx(pool)
    assert density.of(State(Kind.CHUNK, last=4), True, 5) == 0.5
    assert density.of(state, True, 6) < 0.5 * density.of(state, True, 5)  # bin 4: none seen
    # 480 more, and nine tenths of the counts are kept.
    for _ in range(480):
        density.event(state, is_leaf=True, now=5, is_hit=False)
    assert (density.hits[3][0], density.ends[3][0]) == pytest.approx((28.8, 432.0))


def test_time_spent_is_summed_as_in_its_definition():
    hits, ends = [0.0] * 64, [0.0] * 64
    hits[3], ends[3], ends[10], hits[63] = 2.0, 1.0, 4.0, 1.0
    H, R = suffixes(hits, ends)
    assert (H[0], H[4], H[63]) == (3.0, 1.0, 1.0)

    def spent(b):  # whoever leaves in bin j spent all bins b..j - 1 and half of bin j
        total = 0.0
        for j in range(b, 64):
            count = hits[j] + ends[j]
            total += count * (AGE[j] - AGE[b] + 0.5 * (AGE[j + 1] - AGE[j]))
        return total

    assert pytest.approx([spent(b) for b in range(64)]) == R

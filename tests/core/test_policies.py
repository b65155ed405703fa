"""What the scores say about pairs of candidates that a user could name."""

from sglang_hybrid.core.policies import Marconi, Utility


def candidate(*args, **kwargs):
    """Arguments of `Policy.weight`."""
    return args, kwargs


def loss(policy, *candidates_and_last_use, now=100):
    heads = [
        (last, 0, 0, policy.weight(*args, **kwargs), 0)
        for (args, kwargs), last in candidates_and_last_use
    ]
    return policy.losses(heads, now)


def test_utility_prefers_to_keep_what_saves_more_per_byte():
    cheap, dear = loss(Utility(), (candidate(1e9, 1e6), 50), (candidate(4e9, 1e6), 50))
    assert cheap < dear


def test_utility_trades_age_for_efficiency():
    # alpha = 1/2: four times the efficiency is worth twice the age.
    old_dear, young_cheap = loss(Utility(0.5), (candidate(4e9, 1e6), 80), (candidate(1e9, 1e6), 90))
    assert abs(old_dear - young_cheap) < 1e-9


def test_superseded_goes_before_its_equal():
    superseded, live = loss(
        Utility(), (candidate(1e9, 1e6, superseded=True), 50), (candidate(1e9, 1e6), 50)
    )
    assert superseded < live


def test_hits_protect():
    unused, used = loss(Utility(), (candidate(1e9, 1e6), 50), (candidate(1e9, 1e6, hits=3), 50))
    assert unused < used


def test_marconi_alpha_four_keeps_an_old_long_prefix_over_young_short_ones():
    long_old, short_young = (candidate(1e12, 1e8), 1), (candidate(1e9, 1e8), 99)
    old, young = loss(Marconi(4.0), long_old, short_young)
    assert young < old
    old, young = loss(Marconi(0.0), long_old, short_young)
    assert old < young


def test_marconi_recency_is_linear_and_defined_when_just_used():
    losses = loss(Marconi(0.0), *[(candidate(1e9, 1e6), last) for last in (0, 50, 99)])
    assert losses == [0.0, 0.5, 0.99]

"""Sampled hit density in plain Python: the same numbers as the form that the replay compiles."""

import random

import numpy as np
import pytest

from sglang_hybrid.core import hit_density
from sglang_hybrid.core.density import Density, SplitMix64, recompute
from sglang_hybrid.core.hit_density import CLASSES, DENSITIES, POOLS, SAMPLES, new_table
from sglang_hybrid.core.sampling import DrawList, SampledIndex


@pytest.mark.parametrize("seed", range(3))
def test_densities_are_those_of_the_scalar_form(seed):
    rng = np.random.default_rng(seed)
    table, other = new_table(), new_table()
    table.cells[:DENSITIES] = rng.gamma(0.2, 50.0, table.cells[:DENSITIES].shape)
    table.cells[:DENSITIES] *= rng.random(table.cells[:DENSITIES].shape) < 0.2
    other.cells[:] = table.cells
    recompute(table)
    hit_density.recompute(other)
    np.testing.assert_allclose(table.cells, other.cells, rtol=1e-12, atol=0)
    assert table.cells[DENSITIES].std() > 0


def test_events_are_counted_as_in_the_scalar_form():
    rng, policy, table = random.Random(1), Density(), new_table()
    for _ in range(1500):
        event = rng.randrange(CLASSES), int(2 ** (rng.random() * 17)), rng.random() < 0.5
        policy.learn(*event)
        hit_density.count_event(table, *event)
    np.testing.assert_allclose(policy.table.cells, table.cells, rtol=1e-12, atol=0)
    assert policy.table.events[0] == 1500


def test_random_numbers_are_splitmix64():
    stream = SplitMix64(0)
    assert stream.draw(2**32) == 0xE220A8397B1DCDAF >> 32  # the published first value of seed 0
    skipped = SplitMix64(0)
    for _ in range(9):
        stream.draw(7)
    skipped.skip(10)
    assert stream == skipped


def test_a_table_is_adopted_as_a_copy_and_one_of_another_shape_refused():
    policy, table = Density(), new_table()
    table.cells[DENSITIES] = 3.0
    policy.adopt(table)
    table.cells[DENSITIES] = 4.0
    assert policy.losses([(1, 1, 1, 2.0, 0)], 5) == [6.0]
    with pytest.raises(ValueError, match="shape"):
        policy.adopt(table._replace(cells=np.zeros((3, CLASSES + POOLS, 8))))


def test_the_last_key_takes_the_place_of_one_that_goes():
    keys = DrawList()
    for key in (5, 6, 7, 8):
        keys.append(key)
    keys.remove(6)
    assert keys.keys == [5, 8, 7]
    keys.remove(7)
    assert keys.keys == [5, 8]
    keys.remove(5)
    keys.append(9)
    assert keys.keys == [8, 9]


def index_of(candidates, others=()):
    """An index of ``candidates`` (key: weight), all last used at 0, beside ``others``."""
    keys = DrawList()
    index = SampledIndex(Density(), keys)
    for key in (*candidates, *others):
        keys.append(key)
    for key, weight in candidates.items():
        index.put(key, weight, 0, 1)
    return index


def test_the_worst_of_the_drawn_goes():
    index = index_of({key: float(key) for key in range(1, 1001)})
    victims = [index.victim(5) for _ in range(200)]
    # The worst of 32 of a thousand: on the mean the 30th.
    assert len(set(victims)) > 30 and 15 < np.mean(victims) < 50


def test_who_is_no_candidate_counts_as_a_draw_only():
    index = index_of({1: 1.0, 2: 2.0}, others=range(10, 40))
    before = index.policy.random.state
    heads = index.heads()
    assert {head[2] for head in heads} == {1, 2} and len(heads) <= SAMPLES
    assert index.policy.random.state != before


def test_a_candidate_that_no_draw_meets_is_found_all_the_same():
    index = index_of({1: 1.0}, others=range(10, 100_000))
    assert index.victim(5) == 1
    index.discard(1)
    assert index.victim(5) is None and len(index) == 0


def test_without_candidates_the_draws_are_skipped_so_that_later_ones_agree():
    index, other = index_of({}, others=range(50)), SplitMix64(0)
    assert index.victim(5) is None
    for _ in range(hit_density.MAX_DRAWS):
        other.draw(50)
    assert index.policy.random == other
    empty = index_of({})
    assert empty.victim(5) is None and empty.policy.random.state == 0

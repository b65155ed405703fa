"""Another policy comes into force while the cache is full: it moves little by little."""

import random

import pytest
from driver import Driver
from harness import make_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from test_stress import check_states, end_one, random_prompt

from sglang_hybrid.adapter import victim_order
from sglang_hybrid.adapter.guards import Guard
from sglang_hybrid.adapter.tree_view import TreeView
from sglang_hybrid.adapter.victim_order import MOVED_PER_REQUEST
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.hit_density import DENSITIES, new_table
from sglang_hybrid.core.migration import MergedIndex
from sglang_hybrid.core.policy_names import make_policy

BOTH = frozenset({Kind.CHUNK, Kind.PROMPT_END})
POLICIES = [("lru", 0.0), ("utility", 0.5), ("utility", 2.0), ("marconi", 1.0), ("density", 0.0)]
CONFIG = {"min_gain_tokens": 1, "ghost_forks": False}


def grown_cache(policy, requests=150, **config):
    """A cache with a few hundred checkpoints of all kinds."""
    rng = random.Random(7)
    cache = make_cache({**CONFIG, "policy": policy, **config}, slots=1000, tokens=1 << 16)
    driver, history = Driver(cache, chunk=48), []
    cache.check_integrity = lambda: None  # after every step: too slow for so many
    for _ in range(requests):
        prompt = random_prompt(rng, history)
        output = [rng.randrange(900, 903) for _ in range(3)]
        driver.serve(prompt, output)
        history = [*history[-40:], [*prompt, *output]]
    del cache.check_integrity
    cache.check_integrity()
    return cache


def rebuilt(cache, policy):
    """A view of the same tree that has known no other policy than ``policy``."""
    old = cache.view
    guard = Guard("order", "", is_strict=True)
    view = TreeView(old.costs, policy, old.bucket_width, old.first_victims, guard)
    view.tree_core, view.tree, view.checkpoints = old.tree_core, old.tree, old.checkpoints
    view.clock = old.clock
    for key in old.drawn_from:
        view._drawn_from.append(key)
        view.touch(old.tree_core.node_by_id(key))
    for leaf in old.tree_core.evictable_device_leaves:
        view.touch(leaf)
    view.settle()
    return view


def is_moving(view):
    return any(isinstance(index, MergedIndex) for index in (*view.states.tiers, *view.leaves.tiers))


@pytest.mark.parametrize("width", [0.0, 0.25])
@pytest.mark.parametrize("before", [0, 3, 4])
@pytest.mark.parametrize("after", range(len(POLICIES)))
def test_when_all_have_moved_the_order_is_that_of_the_new_policy(before, after, width):
    name, alpha = POLICIES[before]
    config = {"alpha": alpha} if name == "marconi" else {}
    cache = grown_cache(name, bucket_width=width, **config)
    view, policy = cache.view, make_policy(*POLICIES[after])
    view.switch(policy, BOTH)
    ticks = 0
    while is_moving(view):
        view.tick()
        ticks += 1
    assert ticks == (0 if before == after else -(-len(view.checkpoints) // MOVED_PER_REQUEST))
    cache.check_integrity()
    expected, now = rebuilt(cache, view.policy), view.clock + 1
    assert len(view.checkpoints) > 3 * MOVED_PER_REQUEST
    assert view.states.order(now) == expected.states.order(now)
    assert view.leaves.order(now) == expected.leaves.order(now)


def test_while_they_move_the_victim_is_the_one_of_the_policy_in_force():
    # With width 0 every candidate of an old index is compared, so the victim is exact at once.
    cache = grown_cache("utility", bucket_width=0.0)
    view = cache.view
    view.switch(make_policy("marconi", 1.0), BOTH)
    expected = rebuilt(cache, view.policy)
    for _ in range(MOVED_PER_REQUEST):
        assert view.states.victim(view.clock + 1) == expected.states.victim(view.clock + 1)
        assert view.leaves.victim(view.clock + 1) == expected.leaves.victim(view.clock + 1)
        key = view.states.victim(view.clock + 1)
        view.states.discard(key)
        expected.states.discard(key)
    assert is_moving(view)


def test_a_tick_moves_a_bounded_number(monkeypatch):
    cache = grown_cache("lru")
    view, placed = cache.view, []
    view.settle()
    view.switch(make_policy("utility", 0.5), BOTH)
    monkeypatch.setattr(view, "_place", lambda node, _: placed.append(node.id))
    view.tick()
    assert len(placed) == len(set(placed)) == MOVED_PER_REQUEST


def test_a_policy_that_is_in_force_already_moves_nothing():
    view = grown_cache("utility", alpha=0.5).view
    view.switch(make_policy("utility", 0.5), BOTH)
    assert not is_moving(view)
    view.switch(make_policy("utility", 0.25), BOTH)
    assert is_moving(view)


def test_density_goes_on_from_the_given_table_or_from_its_own():
    view = grown_cache("density").view
    own = view._density.table
    assert own.events[0] > 0
    view.switch(make_policy("lru", 0.0), BOTH)
    view.switch(make_policy("density", 0.0), BOTH)
    assert view.policy is view._density and view._density.table is own
    table = new_table()
    table.cells[DENSITIES] = 7.0
    view.switch(make_policy("density", 0.0), BOTH, table)
    assert view.policy.table.cells[DENSITIES].min() == 7.0 and view.policy.table.events[0] == 0


def test_existing_checkpoints_keep_their_standing():
    cache = make_cache({**CONFIG, "policy": "utility"})
    driver = Driver(cache, chunk=100)
    driver.serve(list(range(1, 351)))
    first = {key for key, c in cache.view.checkpoints.items() if c.is_first_victim}
    assert len(first) == 4
    cache.view.switch(make_policy("lru", 0.0), frozenset())
    driver.serve(list(range(1001, 1351)))
    assert {key for key, c in cache.view.checkpoints.items() if c.is_first_victim} == first
    assert len(cache.view.checkpoints) == 10


@pytest.mark.parametrize("seed", range(4))
def test_random_switches_among_random_requests(seed, monkeypatch):
    monkeypatch.setattr(victim_order, "MOVED_PER_REQUEST", 2)  # so that switches overlap
    rng = random.Random(seed)
    config = {**CONFIG, "policy": rng.choice(POLICIES)[0], "bucket_width": rng.choice([0, 0.25])}
    cache = make_cache(config, slots=rng.choice([8, 14]), tokens=rng.choice([700, 1500]), rows=4)
    driver = Driver(cache, chunk=rng.choice([16, 64]))
    running, history, moving = [], [], 0
    for _ in range(250):
        action = rng.random()
        if action < 0.25:
            table = new_table()
            table.cells[DENSITIES] *= rng.choice([0.5, 2])
            cache.view.switch(
                make_policy(*rng.choice(POLICIES)),
                rng.choice([BOTH, frozenset({Kind.CHUNK}), frozenset()]),
                rng.choice([None, table]),
            )
        elif action < 0.6:
            prompt = random_prompt(rng, history)
            if len(running) < 3 and driver.has_room(len(prompt)):
                running.append(driver.start(prompt))
        elif running and action < 0.93:
            history = end_one(driver, rng, running, history, is_aborted=action < 0.65)
        else:
            unlocked, wanted = cache.mamba_evictable_size(), rng.randrange(3)
            cache.evict(EvictParams(num_tokens=rng.randrange(60), mamba_num=wanted))
            assert cache.mamba_evictable_size() <= max(0, unlocked - wanted)
        moving += is_moving(cache.view)
        cache.check_integrity()
        check_states(cache)
    for req in running:
        driver.abort(req)
    cache.evict(EvictParams(num_tokens=10**6, mamba_num=10**6))
    assert not cache.view.checkpoints and cache.full_evictable_size() == 0
    assert moving > 50 and cache.counters.hit_tokens

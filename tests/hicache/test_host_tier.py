"""Checkpoints that go to the host and come back, on real pools of both tiers."""

import random

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from test_stress import random_prompt
from tiered_driver import TieredDriver, check_contents, states_on_host, tiered_cache

POLICIES = ["write_through", "write_through_selective", "write_back"]
STRATEGIES = [{}, {"extra_buffer": True}, {"extra_buffer": True, "page_size": 16}]
ALL = EvictParams(num_tokens=1 << 20)
SHARED = 192  # on every page


def prompt(salt, unique=80, shared=SHARED):
    return [*range(1, shared + 1), *range(salt * 1000, salt * 1000 + unique)]


def evict(cache, params=ALL):
    """Evict from the device whatever is in nobody's use."""
    cache.evict(params)
    cache.check_integrity()
    check_contents(cache)


def kept(cache):
    """(depth, kind, hits) of the checkpoints that only the host has."""
    found = cache.host.checkpoints.values()
    return sorted((each.depth, each.kind.name, each.hits) for each in found)


def reasons(cache):
    return {str(reason) for reason, count in cache.counters.short.requests.items() if count}


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


@pytest.fixture(params=STRATEGIES, ids=str)
def options(request):
    return request.param


def test_a_demoted_checkpoint_is_the_same_one_when_it_is_back(policy, options):
    cache = tiered_cache({"prompt_end": "never"}, policy=policy, **options)
    driver = TieredDriver(cache)
    assert [driver.serve(prompt(salt)) for salt in (11, 12, 13)] == [0, 0, SHARED]
    evict(cache)
    assert not cache.view.checkpoints and (SHARED, "BRANCH", 1) in kept(cache)
    clock = cache.view.clock
    assert driver.serve(prompt(14)) == SHARED
    (back,) = [each for each in cache.view.checkpoints.values() if each.depth == SHARED]
    assert (back.kind.name, back.hits, back.last_use) == ("BRANCH", 2, clock + 1)
    assert cache.counters.reloaded_states == 1 and cache.counters.branch_hits == 2
    assert (SHARED, "BRANCH", 2) not in kept(cache)
    check_contents(cache)


def test_a_path_on_the_host_that_is_cut_in_two_keeps_its_checkpoint(policy):
    cache = tiered_cache(policy=policy)
    driver = TieredDriver(cache)
    for _ in range(2):  # what is used once is not copied under write_through_selective
        driver.serve(prompt(11, unique=200), [7, 8, 9])
    evict(cache)
    before = kept(cache)
    assert (SHARED + 202, "DECODE_END", 0) in before
    driver.serve(prompt(12))
    assert [each for each in kept(cache) if each in before] == before
    assert driver.serve([*prompt(11, unique=200), 7, 8, 9, 10]) == SHARED + 202
    check_contents(cache)


def test_a_state_above_the_end_of_an_insert_is_copied_as_well(options):
    cache = tiered_cache({"prompt_end": "never"}, **options)
    driver = TieredDriver(cache)
    driver.serve(prompt(11))
    running = driver.start(prompt(12))
    assert SHARED not in states_on_host(cache)
    driver.poll()
    assert SHARED in states_on_host(cache)
    check_contents(cache)
    driver.abort(running)


def test_a_state_that_comes_while_its_kv_is_copied_follows(options):
    cache = tiered_cache({"prompt_end": "never"}, **options)
    driver = TieredDriver(cache)
    driver.polls = False
    driver.serve(prompt(11))
    running = driver.start(prompt(12))  # the KV of the first is still on its way
    cache.host.pay()
    assert SHARED not in states_on_host(cache)
    driver.polls = True
    driver.poll()
    driver.poll()
    assert SHARED in states_on_host(cache)
    driver.finish(running, [7, 8, 9])
    check_contents(cache)


def test_write_back_keeps_a_state_whose_kv_is_on_the_host_already(options):
    cache = tiered_cache({"prompt_end": "never"}, policy="write_back", **options)
    driver = TieredDriver(cache)
    driver.serve(prompt(11))
    evict(cache)
    assert driver.serve(prompt(12)) == 0
    assert SHARED not in states_on_host(cache)
    evict(cache)
    assert (SHARED, "BRANCH", 0) in kept(cache)
    assert driver.serve(prompt(13)) == SHARED


def test_a_state_goes_alone_when_only_slots_are_short(policy, options):
    cache = tiered_cache({"prompt_end": "never"}, policy=policy, **options)
    driver = TieredDriver(cache)
    for salt in (11, 12, 13):
        driver.serve(prompt(salt))
    kv = cache.full_evictable_size()
    evict(cache, EvictParams(num_tokens=0, mamba_num=cache.mamba_evictable_size()))
    assert cache.full_evictable_size() == kv and (SHARED, "BRANCH", 1) in kept(cache)
    assert driver.serve(prompt(14)) == SHARED
    check_contents(cache)


def test_kv_that_is_on_the_device_alone_counts_to_a_hit_on_the_host(options):
    config = {"prompt_end": "never", "min_gain_tokens": SHARED - 10}
    cache = tiered_cache(config, policy="write_back", **options)
    driver = TieredDriver(cache)
    driver.serve(prompt(11))
    driver.serve(prompt(12, shared=96))  # cuts the node; too little for a checkpoint
    driver.serve(prompt(13))
    evict(cache, EvictParams(num_tokens=0, mamba_num=cache.mamba_evictable_size()))
    req = driver.request(prompt(14))
    req.init_next_round_input(cache)
    assert (req.prefix_len, req.host_hit_length) == (0, SHARED)
    assert driver.serve(prompt(15)) == SHARED
    check_contents(cache)


def two_tiers(slots, **options):
    """A cache with a branch at SHARED on the device, and a deeper one on the host."""
    cache = tiered_cache({"prompt_end": "never"}, slots=slots, **options)
    driver = TieredDriver(cache)
    for salt in (11, 12):
        driver.serve(prompt(salt, 150))
    evict(cache, EvictParams(num_tokens=300))
    driver.serve(prompt(13))
    assert {each.depth for each in cache.view.checkpoints.values()} >= {SHARED}
    return cache, driver


def test_a_reload_for_which_there_is_no_slot_falls_back_to_the_device():
    cache, driver = two_tiers(slots=4)
    deep = [*prompt(11, 150), 7, 8, 9, 10]
    others = [driver.start(prompt(20 + i, shared=0)) for i in range(2)]
    req = driver.admit(deep)
    assert req.prefix_len == SHARED and cache.counters.missed_reloads == 1
    assert "not reloaded" in reasons(cache)
    driver.forward(req, len(deep))
    cache.checkpoint(req, up_to=len(deep))
    for each in (req, *others):
        driver.abort(each)
    assert driver.serve(deep) == SHARED + 152
    check_contents(cache)


def test_without_any_slot_a_declined_reload_starts_from_nothing():
    cache, driver = two_tiers(slots=4)
    others = [driver.start(prompt(20 + i, shared=0)) for i in range(3)]
    req = driver.request([*prompt(11, 150), 7, 8, 9, 10])
    req.init_next_round_input(cache)
    assert req.prefix_len == SHARED and req.host_hit_length > 0
    driver.reload(req)
    assert (req.prefix_len, req.last_node) == (0, cache.root_node_handle())
    assert cache.counters.missed_copies == 1 and not req.kv.holds_mamba
    for each in others:
        driver.abort(each)


def test_a_reload_for_which_there_is_no_kv_falls_back_to_the_device():
    cache, driver = two_tiers(slots=16, tokens=900)
    room = cache.token_to_kv_pool_allocator.available_size() + cache.full_evictable_size()
    other = driver.start(prompt(20, room - SHARED - 60, shared=0))
    deep = [*prompt(11, 150), 7, 8, 9, 10]
    req = driver.request(deep)
    req.init_next_round_input(cache)
    driver.reload(req)
    assert req.prefix_len == SHARED and cache.counters.missed_reloads == 1
    assert req.kv.mamba_cow_src_index is not None
    cache.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.view(1))
    req.kv.mamba_pool_idx = None
    driver.abort(other)
    assert driver.serve(deep) == SHARED + 152


def test_salts_share_nothing_on_the_host(policy):
    cache = tiered_cache(policy=policy)
    driver = TieredDriver(cache)
    for _ in range(2):
        driver.serve(prompt(11), extra_key="a")
    evict(cache)
    assert driver.serve([*prompt(11), 1]) == 0
    assert driver.serve([*prompt(11), 1], extra_key="b") == 0
    assert driver.serve([*prompt(11), 7, 8, 9], extra_key="a") == SHARED + 82


def test_a_flush_empties_the_host(policy):
    cache = tiered_cache(policy=policy)
    driver = TieredDriver(cache)
    for salt in (11, 12, 13):
        driver.serve(prompt(salt))
    evict(cache)
    assert kept(cache)
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    cache.check_integrity()
    assert not kept(cache) and not states_on_host(cache)
    assert [driver.serve(prompt(salt)) for salt in (11, 12, 13)] == [0, 0, SHARED]
    evict(cache)
    assert driver.serve(prompt(14)) == SHARED


def test_what_the_host_evicts_is_counted_and_explained():
    cache = tiered_cache({"prompt_end": "never"}, ratio=0.2, slots=16, tokens=1600)
    driver = TieredDriver(cache)
    for salt in (11, 12, 13):
        driver.serve(prompt(salt))
    evict(cache)
    assert kept(cache)
    for salt in range(20, 24):
        driver.serve(prompt(salt, 150, shared=0))
        evict(cache)
    assert (SHARED, "BRANCH", 1) not in kept(cache)
    assert cache.counters.host_evicted_states >= 1
    assert driver.serve(prompt(14)) == 0
    assert "evicted" in reasons(cache)


def test_a_leaf_that_cannot_go_is_passed_over():
    cache = tiered_cache({"prompt_end": "never"}, policy="write_back", ratio=0.25, tokens=1600)
    driver = TieredDriver(cache)
    driver.serve(prompt(11, 200))
    driver.serve(prompt(12, 150))
    while len(device_nodes(cache)) > 1:
        evict(cache, EvictParams(num_tokens=1))
    (stem,) = device_nodes(cache)
    locks = {child.id: cache.inc_host_lock_ref(child.id) for child in stem.children.values()}
    driver.serve(prompt(30, 60, shared=0))
    evict(cache)
    assert device_nodes(cache) == [stem]
    for node_id, lock in locks.items():
        cache.dec_host_lock_ref(node_id, lock.to_dec_params())
    evict(cache)
    assert not device_nodes(cache)


def device_nodes(cache):
    found, below = [], list(cache.tree_core.root_node.children.values())
    while below:
        node = below.pop()
        below += node.children.values()
        if not node.evicted:
            found.append(node)
    return found


def test_a_storage_backend_cannot_be_attached():
    attached, why = tiered_cache().attach_storage_backend("file")
    assert not attached and "storage" in why


def random_traffic(seed, policy, options, ratio):
    rng = random.Random(seed)
    config = {
        "policy": rng.choice(["utility", "marconi", "lru"]),
        "prompt_end": rng.choice(["auto", "always", "never"]),
        "min_gain_tokens": rng.choice([1, 16]),
    }
    cache = tiered_cache(
        config,
        policy=policy,
        ratio=ratio,
        slots=rng.choice([8, 12]),
        tokens=1600,
        rows=4,
        **options,
    )
    driver = TieredDriver(cache, chunk=rng.choice([64, 128]))
    running, history = [], []
    for _ in range(90):
        action = rng.random()
        driver.polls = rng.random() < 0.7
        if action < 0.5 and len(running) < 2 and driver.has_room(150):
            if cache.free_state_slots() >= 4:
                new, space = random_prompt(rng, history), rng.choice([None, None, "a"])
                running.append(driver.start(new, space))
        elif running and action < 0.85:
            req = running.pop(rng.randrange(len(running)))
            if action < 0.55 or not driver.has_room(80):
                driver.abort(req)
            else:
                output = [rng.randrange(900, 903) for _ in range(rng.randrange(1, 40))]
                driver.finish(req, output)
                history = [*history[-11:], [*req.origin_input_ids, *output]]
        elif action < 0.95:
            cache.evict(EvictParams(num_tokens=rng.randrange(400), mamba_num=rng.randrange(4)))
        elif action < 0.96 and not running and not cache.ongoing_write_through:
            cache.reset()
            cache.req_to_token_pool.clear()
            cache.token_to_kv_pool_allocator.clear()
            assert not cache.host.checkpoints
        cache.check_integrity()
        check_contents(cache)
    for req in running:
        driver.abort(req)
    return cache


@pytest.mark.parametrize("ratio", [0.5, 4.0])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_random_requests_over_both_tiers(options, policy, ratio):
    seed = POLICIES.index(policy) + 3 * STRATEGIES.index(options)
    cache = random_traffic(seed, policy, options, ratio)
    counters = cache.counters.as_dict()
    assert counters["copied_states"] and counters["demoted_states"] and counters["reloaded_states"]
    if ratio < 1:
        assert counters["host_evicted_states"]

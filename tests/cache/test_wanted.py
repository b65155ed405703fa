"""Checkpoints that the tree alone does not tell: ghost forks and the end of the system message."""

import pytest
from driver import Driver
from harness import make_cache

from sglang_hybrid.adapter.system_end import SystemEnd
from sglang_hybrid.core.checkpoints import Kind


def prompt(shared: int, unique: int, salt: int) -> list[int]:
    return [*range(1, shared + 1), *range(salt * 1000, salt * 1000 + unique)]


def flood(driver, seed):
    """Unrelated requests until nothing of the earlier ones is left."""
    for i in range(12):
        driver.serve(range(10**6 * seed + 5000 * i, 10**6 * seed + 5000 * i + 600))


def served_after_eviction(config, shared=256, **options):
    """Hits of requests that share a prefix whose KV was evicted after its fork was seen."""
    cache = make_cache(config, slots=8, tokens=2400)
    driver = Driver(cache)
    for salt in (11, 12):
        driver.serve(prompt(shared, 100, salt), **options)
    flood(driver, 1)
    return cache, [driver.serve(prompt(shared, 100, salt), **options) for salt in (13, 14)]


def test_a_fork_is_remembered_beyond_its_kv():
    cache, hits = served_after_eviction({})
    assert hits == [0, 256]
    assert cache.counters.ghost_fork_checkpoints == 1


def test_without_ghost_forks_it_has_to_be_learned_again():
    cache, hits = served_after_eviction({"ghost_forks": False})
    assert hits == [0, 0]
    assert cache.counters.ghost_fork_checkpoints == 0


def test_inside_a_page_its_beginning_is_remembered():
    _, hits = served_after_eviction({}, shared=300)
    assert hits == [0, 256]


def test_a_fork_that_gains_too_little_is_left_out():
    _, hits = served_after_eviction({"min_gain_tokens": 257})
    assert hits == [0, 0]


@pytest.mark.parametrize("key", ["extra_key", "cache_salt", "lora_id"])
def test_what_another_namespace_served_is_not_seen(key):
    cache = make_cache({}, slots=8, tokens=2400)
    driver = Driver(cache)
    driver.keys = {key: "a"}
    for salt in (11, 12):
        driver.serve(prompt(256, 100, salt))
    assert driver.serve(prompt(256, 100, 13)) == 256
    driver.keys = {key: "b"}
    assert driver.serve(prompt(256, 100, 13)) == 0
    flood(driver, 1)
    assert [driver.serve(prompt(256, 100, salt)) for salt in (14, 15)] == [0, 0]
    assert cache.counters.ghost_fork_checkpoints == 0


def test_a_branch_point_in_the_tree_is_not_taken_twice():
    cache = make_cache({"prompt_end": "never"})
    driver = Driver(cache)
    for salt in (11, 12, 13):
        driver.serve(prompt(300, 100, salt))
    depths = sorted(c.depth for c in cache.view.checkpoints.values() if c.kind != Kind.DECODE_END)
    assert depths == [300]


def test_a_flush_forgets_forks():
    cache = make_cache({}, slots=8, tokens=2400)
    driver = Driver(cache)
    for salt in (11, 12):
        driver.serve(prompt(256, 100, salt))
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    assert [driver.serve(prompt(256, 100, salt)) for salt in (13, 14)] == [0, 0]
    assert cache.counters.ghost_fork_checkpoints == 0


HEADER, DELIMITER = (90001, 90002), (90003, 90004)


def chat(system: int, unique: int, salt: int) -> list[int]:
    return [*HEADER, *range(1, system + 1), *DELIMITER, *range(salt * 1000, salt * 1000 + unique)]


@pytest.fixture
def chat_cache():
    cache = make_cache({})
    cache.wanted.system_end = SystemEnd(HEADER, DELIMITER)
    return cache


def test_the_system_message_is_hit_from_its_second_sight(chat_cache):
    driver = Driver(chat_cache)
    hits = [driver.serve(chat(200, 90, salt)) for salt in (11, 12, 13)]
    assert hits == [0, 204, 204]
    assert chat_cache.counters.system_end_checkpoints == 1


def test_a_short_system_message_gets_no_checkpoint(chat_cache):
    driver = Driver(chat_cache)
    assert [driver.serve(chat(100, 90, salt)) for salt in (11, 12)] == [0, 0]
    assert chat_cache.counters.system_end_checkpoints == 0


def test_both_a_system_end_and_a_later_fork_are_kept(chat_cache):
    driver = Driver(chat_cache)
    shared = chat(200, 300, 11)
    hits = [driver.serve([*shared, *range(s * 1000, s * 1000 + 80)]) for s in (21, 22, 23)]
    assert hits == [0, 204, 504]
    assert driver.serve(chat(200, 90, 31)) == 204

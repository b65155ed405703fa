"""Reports of running such a cache: tenants, ranks, flushes, KV events."""

import random
import time

import pytest
from driver import Driver
from harness import make_cache
from saving_driver import SavingDriver, saving_cache
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from stock_driver import StockDriver, clear, sharing, stock_cache, unique

from sglang_hybrid.adapter import hooks

ADAPTER, OTHER_ADAPTER = "0a" * 16, "0b" * 16


@pytest.fixture
def adapters_apart():
    """The hook that a scheduler with this cache installs."""
    hooks.install(hook for hook in hooks.SCHEDULER if hook.target.endswith("Req.__init__"))


TENANTS = [
    {},
    {"extra_key": "abc"},
    {"cache_salt": "abc"},
    {"extra_key": "ab", "cache_salt": "c"},
    {"extra_key": "a", "cache_salt": "bc"},
    {"lora_id": ADAPTER},
    {"lora_id": OTHER_ADAPTER},
    {"lora_id": ADAPTER, "extra_key": "abc"},
    {"extra_key": ADAPTER},
    {"extra_key": f"abc{ADAPTER}"},
    {"extra_key": f"\0lora:{ADAPTER}"},
    {"extra_key": f"\0\0lora:{ADAPTER}"},
]


def test_no_tenant_hits_what_another_computed(adapters_apart):
    """sglang #24638: a request to the base model hit the KV of a LoRA adapter, whose id its
    caller had given as ``extra_key``; SGLang 0.5.23 joins the two into one string."""
    cache = saving_cache(slots=64, tokens=1 << 14)
    driver = SavingDriver(cache)
    for tenant in TENANTS:
        driver.keys = {k: v for k, v in tenant.items() if k != "extra_key"}
        hits = [driver.serve(range(1, 301), [7], tenant.get("extra_key")) for _ in range(3)]
        assert hits == [0, 0, 299], tenant


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"cache_salt": None}])
def test_no_tenant_is_told_where_prompts_of_another_part(other):
    """sglang #24638, of what is remembered without KV: neither forks nor evicted checkpoints
    of one ``cache_salt`` may be seen under another."""
    cache = make_cache({"min_gain_tokens": 1}, slots=8, tokens=2400)
    driver = Driver(cache)
    driver.keys = {"cache_salt": "a"}
    for salt in (11, 12, 13):
        driver.serve(sharing(256, 100, salt), [7])
    for i in range(12):
        driver.serve(unique(600, 100 + i), [7])
    before = cache.counters.ghost_fork_checkpoints
    driver.keys = other
    assert driver.serve(sharing(256, 100, 14), [7]) == 0
    assert cache.counters.ghost_fork_checkpoints == before
    assert cache.counters.short.tokens["evicted"] == 0
    driver.keys = {"cache_salt": "a"}
    driver.serve(sharing(256, 100, 16), [7])
    assert cache.counters.ghost_fork_checkpoints == before + 1
    assert cache.counters.short.tokens["evicted"] > 0


def test_ranks_with_other_clocks_evict_the_same_nodes(monkeypatch):
    """sglang #22759: ranks stamped nodes with their own wall clock, evicted different nodes
    and hung in the next collective."""

    def evicted(clock):
        for name in ("time", "monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, clock)
        cache = saving_cache(slots=10, tokens=3000, rows=4)
        driver, rng, gone = SavingDriver(cache, chunk=64), random.Random(5), []
        first = cache.tree_core.root_node.id  # ids count on from cache to cache
        for _ in range(60):
            before = set(cache.view.checkpoints)
            driver.serve(sharing(rng.choice([0, 70, 130, 260]), 90, rng.randrange(11, 30)), [7])
            gone.append(sorted(node - first for node in before - set(cache.view.checkpoints)))
        monkeypatch.undo()
        return gone

    now, jumps = time.time(), random.Random(7)
    straight, wild = evicted(lambda: now), evicted(lambda: now + jumps.uniform(-1e6, 1e6))
    assert straight == wild and sum(map(len, straight)) > 100


@pytest.mark.parametrize("extra_buffer", [False, True])
def test_a_flush_leaves_no_slot_behind(extra_buffer):
    """sglang #23216: slots of states stayed taken after ``/flush_cache``."""
    cache = saving_cache(slots=24, extra_buffer=extra_buffer)
    driver, allocator = SavingDriver(cache, chunk=64), cache.req_to_token_pool.mamba_allocator
    for _ in range(2):
        assert driver.serve(sharing(250, 90, 11), [7]) == 0
        driver.serve(sharing(250, 90, 12), [7])
        assert allocator.available_size() < allocator.size
        clear(cache)
        assert allocator.available_size() == allocator.size == 24
        assert cache.mamba_evictable_size() == cache.mamba_protected_size() == 0
        assert sum(cache.view.live.values()) == 0
        driver.check()


def hashes(events, kind):
    return {block for event in events if isinstance(event, kind) for block in event.block_hashes}


def events_of(cache_or_stock, driver_class):
    """What is published while states go alone, then KV, then everything."""
    cache, driver = cache_or_stock, driver_class(cache_or_stock)
    for salt in (11, 12, 13):
        driver.serve(sharing(256, 128, salt), [7])
    stored = cache.take_events()
    cache.evict(EvictParams(num_tokens=0, mamba_num=2))
    of_states = cache.take_events()
    kv = cache.full_evictable_size()
    cache.evict(EvictParams(num_tokens=100))
    of_kv, gone = cache.take_events(), kv - cache.full_evictable_size()
    return stored, of_states, of_kv, gone


@pytest.mark.parametrize("page", [1, 64])
def test_events_tell_of_kv_alone(page):
    """sglang #23678: a router that follows KV events must not be told that a block went when
    only the state at its end did, and must be told when the KV goes."""
    cache = saving_cache(slots=24, page_size=page, extra_buffer=True, kv_events=True)
    stored, of_states, of_kv, gone = events_of(cache, SavingDriver)
    assert cache.counters.evicted_states >= 2
    assert not of_states
    known, removed = hashes(stored, BlockStored), hashes(of_kv, BlockRemoved)
    assert removed and removed < known and len(removed) == gone // page
    # What is left: each block's parent is known, and no removed one is.
    cache.evict(EvictParams(num_tokens=1 << 14))
    assert hashes(cache.take_events(), BlockRemoved) == known - removed
    clear(cache)
    assert any(isinstance(event, AllBlocksCleared) for event in cache.take_events())


def test_the_cache_of_sglang_drops_kv_with_a_leafs_state():
    """The other side of sglang #23678: there the state of a leaf takes its KV along."""
    cache = stock_cache(slots=24, extra_buffer=True, kv_events=True)
    _, of_states, _, _ = events_of(cache, StockDriver)
    assert hashes(of_states, BlockRemoved)

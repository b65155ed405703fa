"""Reports of state slots that ran out, leaked, or went with too much else."""

import pytest
from harness import match_length
from saving_driver import SavingDriver, saving_cache
from sglang.srt.managers.schedule_batch import release_req
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.common import evict_from_tree_cache, release_kv_cache
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from stock_driver import StockDriver, sharing, stock_cache, unique

from sglang_hybrid.adapter.prefill import HybridPrefillAdder

STRATEGIES = pytest.mark.parametrize("extra_buffer", [False, True], ids=["no_buffer", "extra"])


def held_by(req) -> int:
    """State slots that a request has outside of the tree."""
    ping_pong = req.kv.mamba_ping_pong_track_buffer
    held = 0 if ping_pong is None else sum(slot >= 0 for slot in ping_pong.tolist())
    return held + int(req.kv.holds_mamba) + len(getattr(req, "hybrid_saved", []))


def check_account(cache, *requests):
    """Every slot and every token is free, evictable, protected, or held by a request."""
    slots = cache.req_to_token_pool.mamba_allocator
    in_tree = cache.mamba_evictable_size() + cache.mamba_protected_size()
    held = sum(map(held_by, requests))
    assert slots.available_size() + in_tree + held == slots.size
    tokens = cache.token_to_kv_pool_allocator
    in_tree = cache.full_evictable_size() + cache.full_protected_size()
    own = [max(0, r.kv.kv_allocated_len - r.kv.cache_protected_len) for r in requests]
    assert tokens.available_size() + in_tree + sum(own) == tokens.size


def lock_all_states(cache) -> list:
    """As a write to another tier locks them while it runs; returns the locks."""
    nodes, stack = [], list(cache.tree_core.root_node.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        if node.component_data[ComponentType.MAMBA].value is not None:
            nodes.append(node)
    return [cache.lock(node.id) for node in nodes]


def with_all_states_locked(driver, own_slots: int) -> list:
    """Fill the pool but for ``own_slots`` and lock what fills it; returns the locks."""
    slots = driver.cache.req_to_token_pool.mamba_allocator
    for salt in range(1, slots.size - own_slots + 1):
        driver.serve(unique(100, salt), [7])
    assert slots.available_size() == own_slots
    return lock_all_states(driver.cache)


@STRATEGIES
def test_without_a_slot_the_states_of_a_long_prefill_are_skipped(extra_buffer):
    """sglang #36770, #37619, #37943, #40128, #40416: the state at a chunk boundary is optional,
    but where all 30 cached states of 32 were locked, `Can not alloc mamba cache` ended the
    scheduler, as it does in SGLang 0.5.23.
    """
    own = 3 if extra_buffer else 1  # the running state and two tracking slots
    options = {"slots": 30 + own, "tokens": 1 << 15, "extra_buffer": extra_buffer}
    stock = StockDriver(stock_cache(**options), chunk=4096)
    with_all_states_locked(stock, own)
    with pytest.raises(AssertionError, match="Can not alloc mamba cache"):
        stock.start(unique(12_000, 99))

    cache = saving_cache({"prompt_end": "never"}, **options)
    driver = SavingDriver(cache, chunk=4096)
    locks = with_all_states_locked(driver, own)
    assert cache.req_to_token_pool.mamba_allocator.available_size() == own
    assert cache.mamba_evictable_size() == 0
    req = driver.start(unique(12_000, 99))
    check_account(cache, req)
    assert cache.counters.skipped_checkpoints + cache.counters.declined_checkpoints >= 2
    driver.finish(req, [7, 8])
    for lock in locks:
        cache.unlock(lock)
    check_account(cache)
    # The end of the sequence needed no slot: the request handed over its own.
    assert match_length(cache, [*unique(12_000, 99), 7, 8, 9]) == 12_001


def adder_of(cache):
    return HybridPrefillAdder(
        page_size=cache.page_size,
        tree_cache=cache,
        token_to_kv_pool_allocator=cache.token_to_kv_pool_allocator,
        running_batch=None,
        new_token_ratio=0.5,
        rem_input_tokens=1 << 14,
        rem_chunk_tokens=2048,
    )


def test_a_request_waits_until_all_its_slots_can_be_had():
    """sglang #34676, #40416: 14 of 16 slots were taken and locked; a request got its state and
    then no tracking slots (`Not enough space for mamba ping pong idx`), which ended the
    scheduler, as SGLang's allocation still does. Here admission asks for all of them first.
    """
    follow_up = [*unique(100, 1), 7, 8, 9]
    options = {"slots": 16, "extra_buffer": True}
    stock = StockDriver(stock_cache(**options))
    with_all_states_locked(stock, 3)
    stock.cache.req_to_token_pool.mamba_allocator.alloc(1)
    with pytest.raises(AssertionError, match="Not enough space for mamba ping pong idx"):
        stock.admit(follow_up)

    cache = saving_cache({"min_gain_tokens": 1, "prompt_end": "never"}, **options)
    driver = SavingDriver(cache)
    locks = with_all_states_locked(driver, 2)
    req = driver.wait(follow_up)
    assert held_by(req) == 1  # for the copy of its hit
    assert adder_of(cache).add_one_req(req, False, None) == AddReqResult.NO_TOKEN
    assert cache.counters.slot_waits == 1
    check_account(cache, req)
    cache.unlock(locks.pop())
    cache.unlock(locks.pop())
    assert adder_of(cache).add_one_req(req, False, None) == AddReqResult.CONTINUE
    driver.take_in(req)
    assert (req.prefix_len, held_by(req)) == (100, 3)
    check_account(cache, req)


@STRATEGIES
@pytest.mark.parametrize("shared", [0, 250])
def test_no_slot_leaks_however_a_request_ends(extra_buffer, shared):
    """sglang #12693, #16067, #21404, #26941: slots were lost when a request was aborted in the
    queue (where it may hold the copy of its hit), refused by admission, aborted while it ran,
    or closed with its session. After every step all slots are accounted for.
    """
    cache = saving_cache({"min_gain_tokens": 1}, slots=20, rows=4, extra_buffer=extra_buffer)
    driver = SavingDriver(cache, chunk=128)
    for salt in (1, 2, 3):
        driver.serve(sharing(shared, 100, salt), [7])
        check_account(cache)

    refused = driver.wait(sharing(shared, 100, 4))
    assert refused.prefix_len == shared and held_by(refused) == bool(shared)
    check_account(cache, refused)
    release_kv_cache(refused, cache, checkpoint=False)  # as from the queue
    assert held_by(refused) == 0
    check_account(cache)

    driver.serve([*unique(200, 7), *unique(100, 8)], [7])
    for forwards, saved in ((1, 1), (2, 0)):  # between a forward and its result
        stopped = driver.start(
            [*unique(200, 7), *unique(300, 9)], stop_after=driver.passes + forwards
        )
        assert held_by(stopped) == (3 if extra_buffer else 1) + saved  # at the branch point
        check_account(cache, stopped)
        driver.abort(stopped)
        check_account(cache)

    first, second = driver.start(sharing(shared, 100, 6)), driver.start(sharing(shared, 100, 6))
    check_account(cache, first, second)
    driver.finish(first, [7, 8, 9])
    check_account(cache, second)
    driver.finish(second, [7, 8, 9])  # the tree has its states already
    check_account(cache)
    evicted = cache.evict(EvictParams(num_tokens=1 << 14, mamba_num=20))
    assert evicted.mamba_num_evicted > 0
    slots = cache.req_to_token_pool.mamba_allocator
    assert slots.available_size() == slots.size


def decode(driver, req, output):
    req.output_ids.extend(output)
    req.refresh_fill_ids()
    for _ in output[:-1]:
        driver._land(req, driver.decode([req]))


@STRATEGIES
def test_a_retracted_request_goes_on_from_a_state_of_its_own(extra_buffer):
    """sglang #22493: a request that was retracted lost its state, went on from what another had
    left in the slot, and answered garbage. What it goes on from here is a checkpoint of its own
    tokens, or nothing. (`test_retracted_requests` compares the answers of a server.)
    """
    cache = saving_cache({"min_gain_tokens": 1}, slots=20, rows=4, extra_buffer=extra_buffer)
    driver = SavingDriver(cache)
    for has_state in (True, False):
        req = driver.start(unique(300, 1 + has_state))
        decode(driver, req, [5, 6, 7, 8])
        release_req(
            req=req,
            remaing_req_count=1,
            req_to_token_pool=cache.req_to_token_pool,
            token_to_kv_pool_allocator=cache.token_to_kv_pool_allocator,
            tree_cache=cache,
            hisparse_coordinator=None,
        )
        assert held_by(req) == 0
        check_account(cache)
        if not has_state:
            cache.evict(EvictParams(num_tokens=0, mamba_num=20))
        other = [driver.start(unique(50, salt)) for salt in (8, 9)]  # take the slots it had
        req.init_next_round_input(cache)
        assert len(req.full_untruncated_fill_ids) == 304
        driver.take_in(req)
        assert req.prefix_len == (300 if has_state else 0)
        assert req.kv.mamba_needs_clear != has_state
        check_account(cache, req, *other)
        driver.forward(req, 304)  # compares the copied state with the tokens it stands for
        for running in (req, *other):
            driver.abort(running)


def fragments(driver):
    """Sixteen sequences of 102 tokens, each with a state at its end; the pool is full."""
    for salt in range(1, 17):
        driver.serve(unique(100, salt), [5, 6, 7])
    return driver.cache


FULL = {"tokens": 16 * 102, "rows": 4}


@STRATEGIES
def test_kv_is_evicted_up_to_the_shortfall(extra_buffer):
    """sglang #32016: for 300 tokens of which 204 were free, 300 more were evicted, and with
    each leaf a checkpoint that nothing can rebuild.
    """
    config = {"prompt_end": "never"}
    cache = fragments(
        SavingDriver(saving_cache(config, slots=40, extra_buffer=extra_buffer, **FULL))
    )
    evict_from_tree_cache(cache, 204)
    tokens, states = cache.token_to_kv_pool_allocator, len(cache.view.checkpoints)
    assert (tokens.available_size(), states) == (204, 14)
    evict_from_tree_cache(cache, 200)
    assert (tokens.available_size(), len(cache.view.checkpoints)) == (204, 14)
    evict_from_tree_cache(cache, 300)
    assert (tokens.available_size(), len(cache.view.checkpoints)) == (306, 13)


@STRATEGIES
def test_kv_that_leads_to_no_state_goes_before_a_checkpoint(extra_buffer):
    """sglang #38151: an eviction for KV took checkpoints although KV that nothing could hit
    was there."""
    config = {"prompt_end": "never"}
    cache = fragments(
        SavingDriver(saving_cache(config, slots=40, extra_buffer=extra_buffer, **FULL))
    )
    cache.evict(EvictParams(num_tokens=0, mamba_num=8))
    alive = set(cache.view.checkpoints)
    assert len(alive) == 8
    evict_from_tree_cache(cache, 8 * 102)
    assert set(cache.view.checkpoints) == alive
    evict_from_tree_cache(cache, 8 * 102 + 1)
    assert len(cache.view.checkpoints) == 7


@STRATEGIES
def test_states_are_evicted_up_to_the_shortfall_and_alone(extra_buffer):
    """sglang #38151, the other pool: of SGLang 0.5.23 the state of a leaf takes its KV along."""
    config = {"prompt_end": "never"}
    options = {"slots": 40, "extra_buffer": extra_buffer, **FULL}
    cache = fragments(SavingDriver(saving_cache(config, **options)))
    cache.evict(EvictParams(num_tokens=0, mamba_num=3))
    assert (len(cache.view.checkpoints), cache.full_evictable_size()) == (13, 16 * 102)
    stock = fragments(StockDriver(stock_cache(**options)))
    before = stock.full_evictable_size()
    stock.evict(EvictParams(num_tokens=0, mamba_num=3))
    assert stock.full_evictable_size() < before

"""States and tokens in one buffer (``--enable-unified-memory``): rows move, ids do not.

The pools are SGLang's own; here are the cases that `test_machine` meets by chance only.
"""

import pytest
import torch
from driver import Driver
from harness import make_cache, match_length
from machine_checks import FULL, MAMBA, check_drained, check_slots, read_tree
from saving_driver import SavingDriver, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from small_scheduler import SmallScheduler
from test_stress import check_states

from sglang_hybrid.adapter import forward_saves
from sglang_hybrid.adapter.forward_saves import ForwardSaves
from sglang_hybrid.adapter.model_costs import kv_bytes_per_token, state_bytes
from sglang_hybrid.adapter.tuning import _pools

STRATEGIES = [
    {},
    {"extra_buffer": True},
    {"extra_buffer": True, "page_size": 64},
    {"extra_buffer": True, "lazy": True},
]
STATE_BYTES, TOKEN_BYTES = 1200, 32


@pytest.fixture(params=STRATEGIES, ids=str)
def options(request):
    return {"unified": True, **request.param}


def prompt(shared, unique, salt):
    return [*range(1, shared + 1), *range(salt * 1000, salt * 1000 + unique)]


def move_rows(cache, tokens):
    """Evict of both kinds what goes first, and have what lies behind it move."""
    cache.evict(EvictParams(num_tokens=tokens, mamba_num=1))
    allocator = cache.token_to_kv_pool_allocator
    parts = allocator.full_attn_allocator, allocator.mamba_allocator
    assert sum(part.flush_for_allocation() for part in parts) > 0


def run(scheduler, *prompts, answer=3, steps=40):
    """Serve prompts one after another; returns their hits."""
    hits = []
    for each in prompts:
        req = scheduler.submit(each, sampling={"max_new_tokens": answer})
        for _ in range(steps):
            scheduler.prefill()
            scheduler.decode_step()
            if req.finished() and scheduler.pending is None:
                break
        assert req.finished(), f"{len(each)} tokens were not served"
        hits.append(req.hybrid_hit)
    check_slots(scheduler)
    return hits


def scheduler_of(config=None, chunk=128, **options):
    return SmallScheduler(saving_cache(config, **options), chunk, lambda req: 900)


# ---- ids are virtual ----


@pytest.mark.parametrize("mode", ["exact", "split", "chunk"])
def test_a_shared_prefix_hits_though_all_rows_moved(options, mode):
    if mode == "chunk" and not options.get("extra_buffer"):
        pytest.skip("no_buffer saves at any token")
    config = {"branch_checkpoint": mode, "policy": "lru", "prompt_end": "never"}
    scheduler = scheduler_of(config, 512, **options)
    cache, old = scheduler.cache, prompt(0, 128, 9)
    assert run(scheduler, old, prompt(250, 80, 11), prompt(250, 80, 12)) == [0, 0, 0]
    move_rows(cache, 128)
    grid = 64 if mode == "chunk" else cache.page_size
    assert run(scheduler, prompt(250, 80, 13), prompt(250, 80, 14)) == [250 // grid * grid] * 2
    check_drained(scheduler)


def test_rows_may_move_between_the_plan_of_a_forward_and_its_run(options):
    cache = saving_cache({"policy": "lru"}, **options)
    driver = SavingDriver(cache)
    for each in (prompt(0, 128, 9), prompt(250, 80, 11)):
        driver.serve(each)
    req = driver.take_in(driver.wait(prompt(250, 80, 12)))
    req.extend_end = 330
    batch = driver.prepare([req])
    move_rows(cache, 128)
    driver.run(batch)
    driver.checkpoint(req)
    check_states(cache)
    assert match_length(cache, prompt(250, 80, 13)) == 250 // cache.page_size * cache.page_size


def test_a_state_that_was_freed_before_the_forward_ran_is_written_nowhere():
    """A freed slot has no row: its index, -1, is the last row of the buffer, where KV lies."""
    cache = saving_cache({"prompt_end": "always"}, extra_buffer=True, unified=True)
    driver = SavingDriver(cache)
    driver.serve(prompt(250, 80, 11))
    req = driver.take_in(driver.wait(prompt(250, 80, 12)))
    req.extend_end = 330
    saves = driver.prepare([req]).hybrid_saves
    driver.abort(req)
    saves.begin()
    assert saves._targets.tolist() == [-1]
    saves.copy_ends()
    assert saves.ends_written
    read_tree(cache)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_copy_from_or_to_a_slot_that_was_freed_changes_nothing(is_plain, monkeypatch):
    monkeypatch.setattr(forward_saves, "is_plain", lambda pool: is_plain)
    cache = saving_cache({"prompt_end": "always"}, extra_buffer=True, unified=True)
    SavingDriver(cache).serve(prompt(250, 80, 11))
    pool = cache.req_to_token_pool
    live = [torch.tensor([slot]) for slot in read_tree(cache)[1].values()]
    freed = pool.mamba_allocator.alloc(1)
    pool.mamba_allocator.free(freed)
    saves = ForwardSaves(pool, None, cache.guards.saving)
    for slot in live:
        saves.add_end(slot, freed)
        saves.add_end(freed, slot)
    saves.seal()
    saves.copy_ends()
    read_tree(cache)


# ---- either kind makes room for the other ----


def available(cache, kind):
    return cache._component_available_size(kind)


def fill_with_kv(cache, length=70):
    """Sequences without states, until KV has to go for the next."""
    driver = SavingDriver(cache)
    for salt in range(2, 100):
        driver.serve(prompt(0, length, salt))
        cache.evict(EvictParams(num_tokens=0, mamba_num=1 << 10))
        if cache.counters.evicted_leaves:
            break
    assert not cache.mamba_evictable_size() and cache.full_evictable_size() > 10 * length


def take_all_slots(cache):
    while cache.req_to_token_pool.mamba_allocator.alloc(1) is not None:
        pass


def watch(cache, kind):
    """What is available of a kind before each of the victims to come."""
    before = []
    for name in ("_evict_device_leaf", "_evict_device_next_node"):
        original = getattr(cache, name)

        def victim(*args, original=original):
            before.append(available(cache, kind))
            return original(*args)

        setattr(cache, name, victim)
    return before


@pytest.mark.parametrize("wanted", [1, 5])
@pytest.mark.parametrize("page", [1, 64])
def test_kv_makes_room_for_states_and_no_more_than_that(wanted, page):
    cache = saving_cache(unified=True, slots=12, tokens=2048, extra_buffer=True, page_size=page)
    fill_with_kv(cache)
    take_all_slots(cache)
    before = watch(cache, MAMBA)
    have, leaves = available(cache, MAMBA), len(cache.tree_core.evictable_device_leaves)
    result = cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=wanted))
    assert before and max(before) < have + wanted <= available(cache, MAMBA)
    assert result.num_tokens_evicted and cache.tree_core.evictable_device_leaves
    assert leaves > len(cache.tree_core.evictable_device_leaves)
    assert cache.req_to_token_pool.mamba_allocator.alloc(have + wanted) is not None


@pytest.mark.parametrize("wanted", [64, 192])
@pytest.mark.parametrize("page", [1, 64])
def test_states_make_room_for_kv_and_no_more_than_that(wanted, page):
    """SGLang evicts KV alone for KV; with that of a running request there is none."""
    options = {"extra_buffer": True, "page_size": page, "overlap": False}
    config = {"chunk_boundary": "first_victims", "prompt_end": "never"}
    cache = saving_cache(config, unified=True, slots=20, tokens=2048, **options)
    driver = SavingDriver(cache, chunk=64)
    driver.start(prompt(0, 1300, 3))
    kv = cache.token_to_kv_pool_allocator
    while kv.alloc(page) is not None:
        pass
    assert cache.mamba_evictable_size() > 10 and not cache.full_evictable_size()
    before, states = watch(cache, FULL), cache.mamba_evictable_size()
    result = cache.evict_for_alloc(EvictParams(num_tokens=wanted))
    assert before and max(before) < wanted <= available(cache, FULL)
    assert result.mamba_num_evicted == states - cache.mamba_evictable_size() < states
    assert kv.alloc(wanted) is not None


def test_a_checkpoint_takes_the_place_of_a_state_and_not_of_a_leaf():
    cache = make_cache({"prompt_end": "never"}, unified=True, slots=6, tokens=600)
    driver = Driver(cache)
    for salt in range(2, 12):
        driver.serve(prompt(0, 60, salt))
    take_all_slots(cache)
    states, tokens = cache.mamba_evictable_size(), cache.full_evictable_size()
    assert states and cache.components[MAMBA]._take_slot(evict=True) is not None
    assert (cache.mamba_evictable_size(), cache.full_evictable_size()) == (states - 1, tokens)


def test_evict_takes_as_many_states_as_were_asked_for_though_kv_made_room_first():
    cache = saving_cache(unified=True, slots=4, tokens=1024, extra_buffer=True)
    fill_with_kv(cache)
    SavingDriver(cache).serve(prompt(0, 70, 101))
    states, tokens = cache.mamba_evictable_size(), cache.full_evictable_size()
    cache.evict(EvictParams(num_tokens=70, mamba_num=1))
    assert cache.mamba_evictable_size() == states - 1
    assert cache.full_evictable_size() <= tokens - 70


def test_requests_are_admitted_together_though_all_memory_holds_kv_without_states():
    """SGLang counts on evictable states alone for new requests' slots: they queued up."""
    scheduler = scheduler_of(unified=True, slots=4, tokens=1024, extra_buffer=True)
    fill_with_kv(scheduler.cache)
    short = {"max_new_tokens": 3}
    reqs = [scheduler.submit(prompt(0, 20, salt), sampling=short) for salt in range(101, 108)]
    assert available(scheduler.cache, MAMBA) < 6
    assert scheduler.prefill() == reqs
    check_slots(scheduler)


def test_a_request_whose_kv_and_slots_do_not_fit_together_is_not_admitted():
    """SGLang reserves one slot of the three: there would have been too little KV, an error."""
    scheduler = scheduler_of(chunk=4096, unified=True, slots=4, tokens=1024, extra_buffer=True)
    cache = scheduler.cache
    fill_with_kv(cache)
    length = available(cache, FULL) + cache.full_evictable_size() - 85
    req = scheduler.submit(prompt(0, length, 101), sampling={"max_new_tokens": 1})
    assert scheduler.prefill() == []
    scheduler.abort_waiting(req)
    assert run(scheduler, prompt(0, length - 120, 102)) == [0]


def test_a_request_is_admitted_though_most_memory_holds_states():
    """SGLang counts on evictable KV alone for a new request's KV: it waited for ever."""
    config = {"prompt_end": "never"}
    scheduler = scheduler_of(config, 16, unified=True, slots=30, tokens=600, extra_buffer=True)
    cache = scheduler.cache
    run(scheduler, *(prompt(0, 300, salt) for salt in (2, 3)))
    kv = available(cache, FULL) + cache.full_evictable_size()
    length = kv + cache.shared.tokens_of_states() // 3
    assert cache.shared.tokens_of_states() > 300
    assert run(scheduler, prompt(0, length, 99), steps=400) == [0]
    check_drained(scheduler)


# ---- what is counted ----


def test_costs_and_budget_are_those_of_the_buffer():
    cache = make_cache(unified=True, slots=8, tokens=1024)
    pool, allocator = cache.req_to_token_pool, cache.token_to_kv_pool_allocator
    assert kv_bytes_per_token(allocator.get_kvcache()) == TOKEN_BYTES
    assert state_bytes(pool.mamba_pool) == STATE_BYTES
    budget, total = _pools(cache), 8 * STATE_BYTES + 1024 * TOKEN_BYTES
    assert not budget.has_pools and total - STATE_BYTES < budget.total_bytes <= total
    free, slots = cache.shared.state_slots()
    assert len(free) == slots == total // STATE_BYTES


def test_what_is_lost_or_shared_is_seen():
    cache = make_cache(unified=True, slots=8, tokens=1024)
    driver = Driver(cache)
    req = driver.start(prompt(0, 50, 2))
    slots = cache.req_to_token_pool.mamba_allocator
    lost = slots.alloc(1)
    with pytest.raises(AssertionError, match="1 slots are neither free nor owned"):
        cache.check_integrity()
    slots.free(lost)
    cache.check_integrity()
    slots.virtual_to_physical[req.kv.mamba_pool_idx] = -1
    with pytest.raises(AssertionError, match="shared memory"):
        cache.check_integrity()

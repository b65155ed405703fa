"""States that prefill forwards save inside their rows: exact, handed over once, never lost."""

import random

import pytest
from saving_driver import SavingDriver, batch_of, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from test_stress import check_states, random_prompt

STRATEGIES = [
    {},
    {"extra_buffer": True},
    {"extra_buffer": True, "page_size": 16},
    {"extra_buffer": True, "page_size": 64},
]


def prompt(shared, unique, salt):
    return [*range(1, shared + 1), *range(salt * 1000, salt * 1000 + unique)]


def depths(cache, *kinds):
    found = cache.view.checkpoints.values()
    return sorted(c.depth for c in found if not kinds or c.kind.name in kinds)


@pytest.fixture(params=STRATEGIES, ids=str)
def options(request):
    return request.param


@pytest.mark.parametrize("shared", [63, 64, 65, 250, 1000])
def test_branch_and_prompt_end_come_from_one_forward(options, shared):
    cache = saving_cache({"prompt_end": "always"}, **options)
    driver, page = SavingDriver(cache), cache.page_size
    assert driver.serve(prompt(shared, 80, 11)) == 0
    before = depths(cache)
    running = driver.start(prompt(shared, 80, 12))
    assert (running.hit, driver.passes) == (0, 2)
    taken = {shared // page * page, (shared + 80) // page * page}
    assert set(depths(cache)) - set(before) == taken - {0} - set(before)
    driver.finish(running, [7, 8, 9])
    assert [driver.serve(prompt(shared, 80, salt)) for salt in (13, 14)] == [
        shared // page * page
    ] * 2
    assert driver.passes == 4
    check_states(cache)


def test_every_wanted_place_is_saved_in_its_chunk(options):
    cache = saving_cache({"chunk_boundary": "never", "prompt_end": "never"}, **options)
    driver, page = SavingDriver(cache, chunk=128), cache.page_size
    driver.serve(prompt(500, 100, 11))
    assert driver.serve(prompt(200, 400, 12)) == 0
    assert driver.serve(prompt(500, 100, 13)) == 200 // page * page
    assert depths(cache, "BRANCH") == [200 // page * page, 500 // page * page]
    check_states(cache)


def test_rounding_to_pages_is_counted():
    cache = saving_cache(extra_buffer=True, page_size=64)
    driver = SavingDriver(cache)
    driver.serve(prompt(250, 80, 11))
    driver.serve(prompt(250, 80, 12))
    # SGLang's match ends on a page already; a place of our own does not.
    assert cache.counters.rounded_checkpoints == 0
    cache.wanted.system_end = type("End", (), {"find": lambda self, prompt: 100})()
    driver.serve(prompt(10, 190, 13))
    assert cache.counters.rounded_checkpoints == 1
    assert 64 in depths(cache, "SYSTEM_END")


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_sequence_ends_at_its_last_computed_token(options, in_flight):
    cache = saving_cache(**options)
    driver, page = SavingDriver(cache), cache.page_size
    running = driver.start(prompt(200, 0, 0))
    answer = list(range(500, 540))
    driver.finish(running, answer, in_flight=in_flight and cache.enable_mamba_extra_buffer)
    computed = 239 + (in_flight and cache.enable_mamba_extra_buffer)
    assert computed // page * page in depths(cache, "DECODE_END")
    assert driver.serve([*prompt(200, 0, 0), *answer, 1]) == computed // page * page
    check_states(cache)


@pytest.mark.parametrize("prompt_end", ["always", "never"])
def test_a_sequence_that_a_stop_token_ends_continues_without_and_with_it(prompt_end):
    cache = saving_cache({"prompt_end": prompt_end}, extra_buffer=True)
    driver, answer = SavingDriver(cache), list(range(500, 540))
    for follow in ([], [answer[-1]]):
        running = driver.start(prompt(200, 0, 0))
        driver.finish(running, answer, in_flight=True, stops=True)
        assert depths(cache, "DECODE_END") == [239]
        assert driver.serve([*prompt(200, 0, 0), *answer[:-1], *follow, 1, 2]) == 239
        check_states(cache)
        cache.reset()
        cache.req_to_token_pool.clear()
        cache.token_to_kv_pool_allocator.clear()


@pytest.mark.parametrize("stops", [True, False])
def test_a_prompt_kept_without_its_answer_has_its_own_state_or_none(stops):
    cache = saving_cache({"prompt_end": "never"}, extra_buffer=True)
    driver = SavingDriver(cache)
    running = driver.start(prompt(200, 0, 0))
    driver.finish(running, list(range(500, 540)), in_flight=True, stops=stops, kept=200)
    assert depths(cache) == ([] if stops else [200])
    check_states(cache)


def test_what_the_forward_did_not_write_is_not_handed_over(options):
    cache = saving_cache({"prompt_end": "always"}, **options)
    driver = SavingDriver(cache)
    driver.serve(prompt(250, 80, 11))
    driver.writes = False
    second = driver.start(prompt(250, 80, 12))
    assert cache.counters.unwritten_checkpoints >= 1
    assert 250 // cache.page_size * cache.page_size not in depths(cache)
    driver.finish(second, [7, 8])
    driver.writes = True
    check_states(cache)
    assert driver.serve(prompt(250, 80, 13)) == 0


@pytest.mark.parametrize("writes", [True, False])
def test_an_abort_between_forward_and_checkpoint_gives_the_slots_back(options, writes):
    cache = saving_cache(**options)
    driver = SavingDriver(cache)
    driver.serve(prompt(250, 80, 11))
    free, live = cache.req_to_token_pool.mamba_allocator.available_size(), depths(cache)
    driver.writes = writes
    driver.abort(driver.start(prompt(250, 80, 12), stop_after=driver.passes + 1))
    assert cache.req_to_token_pool.mamba_allocator.available_size() == free
    assert depths(cache) == live


def test_requests_of_one_batch_save_a_shared_place_once():
    cache = saving_cache()
    driver = SavingDriver(cache)
    driver.serve(prompt(250, 80, 11))
    reqs = [driver.admit(prompt(250, 80, salt)) for salt in (12, 13)]
    for req in reqs:
        driver._reserve(req, 0, 330)
        req.extend_end = 330
    cache.saver.prepare(batch_of(reqs))
    assert [len(req.hybrid_saved) for req in reqs] == [1, 0]
    for req in reqs:
        driver.abort(req)


def test_without_a_free_slot_a_checkpoint_is_skipped():
    cache = saving_cache({"prompt_end": "never"}, slots=2)
    driver = SavingDriver(cache)
    kept = driver.start(prompt(250, 80, 11))
    running = driver.start(prompt(250, 80, 12))
    assert cache.counters.skipped_checkpoints == 1 and not depths(cache)
    for req in (kept, running):
        driver.finish(req, [7, 8])
    check_states(cache)


@pytest.mark.parametrize("seed", range(8))
def test_random_requests_in_tiny_pools(seed):
    rng = random.Random(seed)
    options = STRATEGIES[seed % len(STRATEGIES)]
    config = {
        "policy": rng.choice(["utility", "marconi", "lru"]),
        "prompt_end": rng.choice(["auto", "always", "never"]),
        "min_gain_tokens": rng.choice([1, 16]),
    }
    tokens = 1600 if options.get("page_size", 1) == 1 else 3200
    slots = rng.choice([10, 16])
    cache = saving_cache(config, slots=slots, tokens=tokens, rows=4, **options)
    driver = SavingDriver(cache, chunk=rng.choice([64, 128]))
    running, history = [], []
    for _ in range(200):
        action = rng.random()
        driver.writes = rng.random() < 0.9
        if action < 0.5 and len(running) < 2 and cache.free_state_slots() >= 4:
            new, space = random_prompt(rng, history), rng.choice([None, None, "a"])
            stop = driver.passes + 1 if rng.random() < 0.1 else None
            req = driver.start(new, space, stop_after=stop)
            if stop is not None:
                driver.abort(req)
            else:
                running.append(req)
        elif running and action < 0.9:
            req = running.pop(rng.randrange(len(running)))
            output = [rng.randrange(900, 903) for _ in range(rng.randrange(1, 80))]
            if action < 0.6:
                driver.abort(req)
            else:
                in_flight = cache.enable_mamba_extra_buffer and rng.random() < 0.5
                stops = in_flight and cache.page_size == 1 and rng.random() < 0.5
                driver.finish(req, output, in_flight=in_flight, stops=stops)
                history = [*history[-11:], [*req.origin_input_ids, *output]]
        else:
            cache.evict(EvictParams(num_tokens=rng.randrange(60), mamba_num=rng.randrange(3)))
        cache.check_integrity()
        check_states(cache)
    for req in running:
        driver.abort(req)
    assert cache.counters.hit_tokens and cache.counters.branch_checkpoints

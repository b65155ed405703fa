"""Why a request hit less of its prompt than it could have."""

import pytest
from driver import Driver
from harness import make_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from test_admission import prompt

from sglang_hybrid.adapter.explain import cached_tokens_details
from sglang_hybrid.adapter.short_hits import Reason, ShortHit


def last_reason(cache, serve):
    """Result of ``serve``, and the reason that it added."""
    before = dict(cache.counters.short.requests)
    result = serve()
    after = cache.counters.short.requests
    (reason,) = [reason for reason in Reason if after[reason] > before[reason]]
    return result, reason


def reasons(cache, driver, prompts):
    return [last_reason(cache, lambda p=p: driver.serve(p))[1] for p in prompts]


def evict_all(cache):
    size = cache.full_evictable_size() + cache.token_to_kv_pool_allocator.available_size()
    cache.evict_for_alloc(EvictParams(num_tokens=size, mamba_num=len(cache.view.checkpoints)))


def test_first_second_and_third_occurrence():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    assert reasons(cache, driver, [range(1, 301)] * 3) == ["no kv", "no state", "full"]
    tokens = cache.counters.short.tokens
    assert tokens["no kv"] == tokens["no state"] == 299  # the last token is always computed
    assert cache.counters.lost_tokens == 299


def test_a_branch_closer_than_the_minimum_gain():
    cache = make_cache({"min_gain_tokens": 128})
    driver = Driver(cache)
    found = reasons(cache, driver, [prompt(100, 40, salt) for salt in (11, 12, 13)])
    assert found == ["no kv", "min gain", "min gain"]


def test_a_few_known_tokens_do_not_hide_that_the_rest_was_never_cached():
    cache = make_cache({"min_gain_tokens": 128})
    driver = Driver(cache)
    driver.serve(prompt(5, 300, 11))
    assert reasons(cache, driver, [prompt(5, 300, 12)]) == ["no kv"]
    assert cache.counters.short.tokens["min gain"] == 5


def test_a_state_evicted_from_inside_a_path_that_is_still_cached():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never"})
    driver = Driver(cache)
    first, answer = list(range(1, 201)), [501, 502, 503]
    driver.serve(first, answer)
    turn = [*first, *answer, *range(601, 701)]
    assert driver.serve(turn, [7, 8, 9]) == 202
    cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
    assert cache.counters.evicted_state_interiors == 1
    other = [*first, *answer, *range(801, 901)]
    assert last_reason(cache, lambda: driver.serve(other)) == (0, "evicted")


def test_a_checkpoint_evicted_with_its_kv_is_remembered():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    for salt in (11, 12):
        driver.serve(prompt(250, 40, salt))
    evict_all(cache)
    assert not cache.view.checkpoints and not cache.full_evictable_size()
    missed = cache.counters.short.tokens["evicted"]
    assert last_reason(cache, lambda: driver.serve(prompt(250, 40, 13))) == (0, "evicted")
    assert cache.counters.short.tokens["evicted"] - missed == 250
    # A prompt that shares only a page with it never had that checkpoint.
    assert last_reason(cache, lambda: driver.serve(prompt(64, 240, 14)))[1] != "evicted"


def test_a_flush_forgets_what_was_evicted():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    for salt in (11, 12):
        driver.serve(prompt(250, 40, salt))
    evict_all(cache)
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    assert reasons(cache, driver, [prompt(250, 40, 13)]) == ["no kv"]


def test_without_a_slot_for_the_copy_the_hit_is_given_up():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never"}, slots=2)
    driver = Driver(cache)
    driver.serve(prompt(0, 50, 11), [7, 8])
    running = driver.start(prompt(0, 50, 12))
    following = [*prompt(0, 50, 11), 7, 99]
    req, reason = last_reason(cache, lambda: driver.start(following))
    assert (req.hit, reason, cache.counters.missed_copies) == (0, "no slot", 1)
    assert cache.counters.short.tokens["no slot"] == 51
    driver.finish(req, [7])
    driver.finish(running, [7])


def test_only_a_request_that_asks_is_told():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    silent = driver.start(range(1, 301))
    driver.finish(silent, [7, 8])
    assert cached_tokens_details(None, None, silent) is None
    driver.custom_params = {"explain_cache": True}
    asking = driver.start(range(1, 301))
    driver.finish(asking, [7, 8])
    assert cached_tokens_details(None, None, asking) == {
        "device": 0,
        "host": 0,
        "reason": "no state",
        "missing": "no state 299",
        "hit": 0,
        "kv": 299,
        "evicted": 0,
        "prompt": 300,
    }


@pytest.mark.parametrize(
    ("hit", "kv", "evicted", "missing"),
    [
        (0, 0, 0, {"no kv": 999}),
        (512, 900, 0, {"no state": 388, "no kv": 99}),
        (512, 512, 700, {"evicted": 188, "no kv": 299}),
        (512, 600, 700, {"no state": 88, "evicted": 100, "no kv": 299}),
        (512, 999, 0, {"no state": 487}),
        (999, 999, 0, {}),
    ],
)
def test_tokens_that_are_missing_add_up(hit, kv, evicted, missing):
    short = ShortHit(1000, 999, hit, kv, evicted, Reason.NO_STATE)
    assert short.missing() == missing
    assert hit + sum(missing.values()) == 999

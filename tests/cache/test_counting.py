"""What the counters say is what happened."""

import random

import pytest
from driver import Driver
from harness import COSTS, make_cache
from test_admission import prompt

from sglang_hybrid.core.checkpoints import Kind

KINDS = [kind.name.lower() for kind in Kind]


def test_a_hit_is_counted_for_the_kind_of_its_checkpoint():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never", "chunk_boundary": "never"})
    driver = Driver(cache)
    for salt in (11, 12, 13, 14):
        driver.serve(prompt(250, 40, salt))
    hits = {kind: getattr(cache.counters, f"{kind}_hits") for kind in KINDS}
    assert hits == {**dict.fromkeys(KINDS, 0), "branch": 2}
    assert driver.serve([*prompt(250, 40, 14), 7, 8, 99]) == 292
    assert cache.counters.decode_end_hits == 1


def test_flops_are_those_of_prompts_and_hits():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    hits = [driver.serve(prompt(250, 40, salt)) for salt in (11, 12, 13)]
    counters = cache.counters
    assert counters.prompt_flops == pytest.approx(3 * COSTS.prefill_flops(290))
    assert counters.saved_flops == pytest.approx(sum(COSTS.prefill_flops(hit) for hit in hits))


def test_live_checkpoints_and_evictions_add_up():
    cache = make_cache({"min_gain_tokens": 1}, slots=6)
    driver, rng = Driver(cache, chunk=64), random.Random(3)
    for _ in range(60):
        driver.serve(prompt(rng.choice([0, 70, 130]), 40, rng.randrange(11, 30)))
    counters, live = cache.counters, cache.view.live
    taken = sum(getattr(counters, f"{kind}_checkpoints") for kind in KINDS)
    assert taken - counters.evicted_states == sum(live.values()) == len(cache.view.checkpoints)
    assert 0 < counters.evicted_unused <= counters.evicted_states
    assert counters.evicted_state_leaves + counters.evicted_state_interiors > 0
    assert sum(counters.short.requests.values()) == counters.requests == 60
    missing = sum(counters.short.tokens.values())
    # All but the last token of every prompt is hit or missing.
    assert missing == counters.prompt_tokens - counters.requests - counters.hit_tokens


def test_a_setting_of_never_is_counted():
    cache = make_cache({"prompt_end": "never", "chunk_boundary": "never"})
    Driver(cache, chunk=64).serve(range(1, 301))
    assert cache.counters.unwanted_checkpoints == 5  # four boundaries and the end


def test_what_is_measured_does_not_change_what_is_done():
    def play(is_measured):
        cache = make_cache({"min_gain_tokens": 1}, slots=6)
        if is_measured:
            cache.measure()
        driver = Driver(cache)
        hits = [driver.serve(prompt(70, 40, 11 + i % 5)) for i in range(20)]
        return hits, cache

    (plain, _), (measured, cache) = play(False), play(True)
    assert plain == measured
    times = cache.status()["times"]
    assert times["admit"]["calls"] >= 20 and times["evict"]["calls"] > 0
    assert all(found["seconds"] > 0 for found in times.values() if found["calls"])

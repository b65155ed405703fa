"""Where checkpoints are taken, on a real cache (no_buffer)."""

import pytest
from driver import Driver
from harness import make_cache, match_length


def prompt(shared: int, unique: int, salt: int) -> list[int]:
    return [*range(1, shared + 1), *range(salt * 1000, salt * 1000 + unique)]


@pytest.mark.parametrize("chunk", [128, 1 << 14])
@pytest.mark.parametrize("shared", [63, 64, 65, 128, 250, 1000])
def test_a_shared_prefix_hits_exactly_from_its_third_occurrence(shared, chunk):
    driver = Driver(make_cache({"min_gain_tokens": 1, "chunk_boundary": "never"}), chunk)
    hits = [driver.serve(prompt(shared, 40, salt)) for salt in (11, 12, 13, 14)]
    assert hits == [0, 0, shared, shared]


def test_the_second_occurrence_may_start_from_a_chunk_boundary():
    driver = Driver(make_cache({"min_gain_tokens": 1}), chunk=128)
    assert [driver.serve(prompt(250, 40, salt)) for salt in (11, 12, 13)] == [0, 128, 250]


def test_a_branch_that_gains_too_little_is_not_taken():
    driver = Driver(make_cache({"min_gain_tokens": 128}))
    assert [driver.serve(prompt(100, 40, salt)) for salt in (11, 12, 13)] == [0, 0, 0]
    assert [driver.serve(prompt(128, 40, salt)) for salt in (15, 16, 17)] == [0, 0, 128]


def test_an_identical_prompt_hits_all_but_its_last_token_the_third_time():
    driver = Driver(make_cache({"min_gain_tokens": 1}))
    assert [driver.serve(range(1, 301)) for _ in range(4)] == [0, 0, 299, 299]


def test_a_conversation_continues_from_the_last_decoded_token_with_a_state():
    driver = Driver(make_cache())
    first, answer = list(range(1, 201)), [501, 502, 503, 504]
    assert driver.serve(first, answer) == 0
    assert driver.serve([*first, *answer, 601, 602]) == len(first) + len(answer) - 1


def test_a_queued_request_matched_many_times_is_one_sighting():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    driver.serve(prompt(250, 40, 11))
    before = {key: (c.hits, c.last_use) for key, c in cache.view.checkpoints.items()}
    for _ in range(5):
        assert match_length(cache, prompt(250, 40, 12)) == 0
    assert {key: (c.hits, c.last_use) for key, c in cache.view.checkpoints.items()} == before
    assert driver.serve(prompt(250, 40, 12)) == 0
    assert driver.serve(prompt(250, 40, 13)) == 250


def test_prompt_kv_is_evidence_even_where_no_state_is_kept():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never"})
    driver = Driver(cache)
    running = driver.start(prompt(250, 40, 11))
    assert not cache.view.checkpoints
    second = driver.start(prompt(250, 40, 12))
    assert [c.depth for c in cache.view.checkpoints.values()] == [250]
    assert driver.serve(prompt(250, 40, 13)) == 250
    driver.finish(running, [7, 8])
    driver.finish(second, [7, 8])


def test_namespaces_do_not_share():
    driver = Driver(make_cache({"min_gain_tokens": 1}))
    assert [driver.serve(range(1, 301), extra_key="a") for _ in range(3)] == [0, 0, 299]
    assert driver.serve(range(1, 301), extra_key="b") == 0


def test_without_a_slot_the_checkpoint_is_skipped_and_the_request_served():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "always"}, slots=2)
    driver = Driver(cache)
    running = [driver.start(prompt(0, 50, salt)) for salt in (11,)]
    running.append(driver.start(prompt(0, 50, 12)))  # both slots are working slots now
    assert cache.counters.skipped_checkpoints > 0
    for req in running:
        driver.finish(req, [7, 8])


def test_flush_forgets_everything():
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    assert [driver.serve(range(1, 301)) for _ in range(3)] == [0, 0, 299]
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    cache.check_integrity()
    assert not cache.view.checkpoints and driver.serve(range(1, 301)) == 0


def test_a_state_beyond_the_tokens_that_are_kept_is_not_handed_over():
    cache = make_cache({"prompt_end": "never"}, strip_thinking_cache=True)
    driver = Driver(cache)
    req = driver.start(range(1, 101))
    req.reasoning_tokens = 2
    driver.finish(req, [7, 8, 9, 10])
    assert not cache.view.checkpoints
    assert cache.full_evictable_size() == 100

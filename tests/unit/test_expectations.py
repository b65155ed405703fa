"""What `hybrid-marconi verify` expects of a server."""

import pytest

from sglang_hybrid.cli.expectations import ExpectedCache, ServerTraits, UnsupportedServer

NO_BUFFER = ServerTraits("no_buffer", min_gain_tokens=1)
EXTRA = ServerTraits("extra_buffer", checkpoint_grid=64, track_grid=64, min_gain_tokens=1)


def info(**changes):
    """A reply of `/server_info`, as far as it matters."""
    config = {"min_gain_tokens": 128, "prompt_end": "auto", "chunk_boundary": "first_victims"}
    reply = {
        "mamba_radix_cache_strategy": "extra_buffer",
        "page_size": 1,
        "chunked_prefill_size": 4096,
        "mamba_track_interval": 64,
        "max_req_input_len": 1000,
        "max_total_num_tokens": 2000,
        "internal_states": [{"hybrid_marconi": {"config": config, "counters": {}}}],
    }
    return {**reply, **changes}


def continuations(traits, shared, count=4, suffix=100, **options):
    """Hits of prompts that share exactly `shared` tokens, one after another."""
    cache = ExpectedCache(traits, **options)
    prefix = list(range(shared))
    return [cache.serve(prefix + [-10 * i - 1] + [7] * (suffix - 1), [9] * 8) for i in range(count)]


def changed(traits, **changes):
    return ServerTraits(**{**traits.__dict__, **changes})


@pytest.mark.parametrize("shared", [1, 63, 64, 65, 128, 250, 1000])
def test_the_third_continuation_hits_the_whole_shared_part_without_buffer(shared):
    assert continuations(NO_BUFFER, shared) == [0, 0, shared, shared]


@pytest.mark.parametrize(("shared", "hit"), [(63, 0), (64, 64), (65, 64), (250, 192), (1000, 960)])
def test_with_buffers_the_shared_part_is_hit_on_the_grid(shared, hit):
    assert continuations(EXTRA, shared) == [0, 0, hit, hit]


def test_a_short_tail_leaves_its_state_inside_the_shared_part():
    # 250 + 5 tokens: the last grid point of the first prompt, 192, is shared by the second.
    assert continuations(EXTRA, 250, suffix=5) == [0, 192, 192, 192]


@pytest.mark.parametrize(("shared", "hit"), [(127, 0), (128, 128)])
def test_a_branch_below_the_minimum_gain_is_not_kept(shared, hit):
    traits = changed(NO_BUFFER, min_gain_tokens=128)
    assert continuations(traits, shared)[2:] == [hit, hit]


@pytest.mark.parametrize(("shared", "hit"), [(191, 128), (192, 192)])
def test_the_minimum_gain_counts_what_the_grid_leaves(shared, hit):
    assert continuations(changed(EXTRA, min_gain_tokens=128), shared)[2] == hit
    assert continuations(changed(EXTRA, min_gain_tokens=192), shared)[2] == (
        hit if hit == 192 else 0
    )


def test_the_same_prompt_hits_all_but_its_last_token_at_its_third_occurrence():
    cache = ExpectedCache(NO_BUFFER)
    assert [cache.serve(range(300), [9] * 8) for _ in range(4)] == [0, 0, 299, 299]


@pytest.mark.parametrize(("prompt_end", "hits"), [("auto", [0, 256]), ("never", [0, 256])])
def test_with_buffers_the_same_prompt_hits_the_grid_point_kept_at_its_end(prompt_end, hits):
    cache = ExpectedCache(changed(EXTRA, prompt_end=prompt_end))
    assert [cache.serve(range(300), [9] * 8) for _ in range(2)] == hits


def test_the_next_turn_hits_prompt_and_output_but_one_token():
    cache = ExpectedCache(NO_BUFFER)
    first, answer = list(range(200)), [501, 502, 503]
    assert cache.serve(first, answer) == 0
    assert cache.serve([*first, *answer, 1, 2], [9, 9]) == 202


@pytest.mark.parametrize(("prompt", "hit"), [(252, 256), (200, 192), (257, 256)])
def test_with_buffers_the_next_turn_hits_the_last_grid_point(prompt, hit):
    cache = ExpectedCache(EXTRA)
    first, answer = list(range(prompt)), list(range(900, 912))
    cache.serve(first, answer)
    assert cache.serve([*first, *answer, 1, 2], [9, 9]) == hit


def test_a_coarse_track_interval_keeps_fewer_states_of_decoding():
    cache = ExpectedCache(changed(EXTRA, track_grid=256))
    first, answer = list(range(190)), list(range(900, 912))
    cache.serve(first, answer)
    assert cache.serve([*first, *answer, 1], [9, 9]) == 128


@pytest.mark.parametrize("traits", [NO_BUFFER, EXTRA])
def test_the_second_occurrence_may_hit_a_chunk_boundary(traits):
    chunked = changed(traits, chunk_tokens=128)
    branch = 960 if traits is EXTRA else 1000
    assert continuations(chunked, 1000)[:3] == [0, 896, branch]
    never = changed(chunked, chunk_boundary="never")
    assert continuations(never, 1000)[:3] == [0, 0, branch]
    assert continuations(chunked, 1000, keeps_unasked=False)[:3] == [0, 0, branch]


def test_a_chunk_that_is_off_the_grid_ends_on_it():
    assert continuations(changed(EXTRA, chunk_tokens=100), 1000)[1] == 960


def test_pages_bound_what_is_hit():
    paged = changed(EXTRA, page_size=64)
    assert continuations(paged, 250) == [0, 0, 192, 192]
    cache = ExpectedCache(paged)
    assert [cache.serve(range(256), [9] * 8) for _ in range(3)] == [0, 0, 192]


def test_traits_are_read_from_the_server():
    traits = ServerTraits.from_server_info(info())
    assert (traits.checkpoint_grid, traits.track_grid, traits.chunk_tokens) == (64, 64, 4096)
    assert (traits.min_gain_tokens, traits.max_prompt_tokens) == (128, 1000)


@pytest.mark.parametrize(
    ("tuning", "expected"),
    [
        (None, ("auto", "first_victims")),
        ({"first_victims": True}, ("auto", "first_victims")),
        ({"first_victims": False}, ("never", "never")),
    ],
)
def test_what_a_tuner_has_put_in_force_counts(tuning, expected):
    reply = info()
    reply["internal_states"][0]["hybrid_marconi"]["tuning"] = tuning
    traits = ServerTraits.from_server_info(reply)
    assert (traits.prompt_end, traits.chunk_boundary) == expected


def test_an_interval_set_by_hand_needs_the_grid_told():
    traits = ServerTraits.from_server_info(info(mamba_track_interval=256), grid=64)
    assert (traits.checkpoint_grid, traits.track_grid) == (64, 256)


def test_pages_make_the_grid_coarser():
    traits = ServerTraits.from_server_info(info(mamba_track_interval=64, page_size=128))
    assert (traits.checkpoint_grid, traits.track_grid) == (128, 128)


def test_without_buffer_there_is_no_grid():
    traits = ServerTraits.from_server_info(info(mamba_radix_cache_strategy="no_buffer"))
    assert (traits.checkpoint_grid, traits.track_grid) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"internal_states": [{}]}, "does not run --cache hybrid-marconi"),
        ({"internal_states": [{"hybrid_marconi": {"error": "boom"}}]}, "boom"),
        ({"mamba_radix_cache_strategy": "other"}, "unknown strategy 'other'"),
    ],
)
def test_servers_that_nothing_can_be_expected_of(changes, message):
    with pytest.raises(UnsupportedServer, match=message):
        ServerTraits.from_server_info(info(**changes))

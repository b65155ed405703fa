"""What `hybrid-marconi verify` expects of a server."""

import pytest

from sglang_hybrid.cli.expectations import ExpectedCache, ServerTraits, UnsupportedServer

EXACT = ServerTraits("exact", min_gain_tokens=1)
SPLIT = ServerTraits("split", min_gain_tokens=1)
CHUNK = ServerTraits("chunk", checkpoint_grid=64, decode_grid=64, min_gain_tokens=1)


def info(**changes):
    """A reply of `/server_info`, as far as it matters."""
    config = {"min_gain_tokens": 128, "prompt_end": "auto", "chunk_boundary": "first_victims"}
    reply = {
        "page_size": 1,
        "chunked_prefill_size": 4096,
        "max_req_input_len": 1000,
        "max_total_num_tokens": 2000,
    }
    status = {
        "config": config,
        "branch_checkpoint": "chunk",
        "checkpoint_grid": 64,
        "decode_grid": 256,
        **changes,
    }
    return {**reply, "internal_states": [{"hybrid_marconi": status}]}


def continuations(traits, shared, count=4, suffix=100, **options):
    """Hits of prompts that share exactly `shared` tokens, one after another."""
    cache = ExpectedCache(traits, **options)
    prefix = list(range(shared))
    return [cache.serve(prefix + [-10 * i - 1] + [7] * (suffix - 1), [9] * 8) for i in range(count)]


def changed(traits, **changes):
    return ServerTraits(**{**traits.__dict__, **changes})


@pytest.mark.parametrize("traits", [EXACT, SPLIT])
@pytest.mark.parametrize("shared", [1, 63, 64, 65, 128, 250, 1000])
def test_the_third_continuation_hits_the_whole_shared_part(traits, shared):
    assert continuations(traits, shared) == [0, 0, shared, shared]


@pytest.mark.parametrize(("shared", "hit"), [(63, 0), (64, 64), (65, 64), (250, 192), (1000, 960)])
def test_where_one_state_is_kept_the_shared_part_is_hit_on_the_grid(shared, hit):
    assert continuations(CHUNK, shared) == [0, 0, hit, hit]


def test_a_short_tail_leaves_its_state_inside_the_shared_part():
    # 250 + 5 tokens: the last grid point of the first prompt, 192, is shared by the second.
    assert continuations(CHUNK, 250, suffix=5) == [0, 192, 192, 192]


@pytest.mark.parametrize(("shared", "hit"), [(127, 0), (128, 128)])
def test_a_branch_below_the_minimum_gain_is_not_kept(shared, hit):
    traits = changed(EXACT, min_gain_tokens=128)
    assert continuations(traits, shared)[2:] == [hit, hit]


@pytest.mark.parametrize(("shared", "hit"), [(191, 128), (192, 192)])
def test_the_minimum_gain_counts_what_the_grid_leaves(shared, hit):
    assert continuations(changed(CHUNK, min_gain_tokens=128), shared)[2] == hit
    assert continuations(changed(CHUNK, min_gain_tokens=192), shared)[2] == (
        hit if hit == 192 else 0
    )


def test_the_same_prompt_hits_all_but_its_last_token_at_its_third_occurrence():
    cache = ExpectedCache(EXACT)
    assert [cache.serve(range(300), [9] * 8) for _ in range(4)] == [0, 0, 299, 299]


@pytest.mark.parametrize(("prompt_end", "hits"), [("auto", [0, 256]), ("never", [0, 256])])
def test_where_one_state_is_kept_the_same_prompt_hits_the_grid_point_kept_at_its_end(
    prompt_end, hits
):
    cache = ExpectedCache(changed(CHUNK, prompt_end=prompt_end))
    assert [cache.serve(range(300), [9] * 8) for _ in range(2)] == hits


def test_the_next_turn_hits_prompt_and_output_but_one_token():
    cache = ExpectedCache(EXACT)
    first, answer = list(range(200)), [501, 502, 503]
    assert cache.serve(first, answer) == 0
    assert cache.serve([*first, *answer, 1, 2], [9, 9]) == 202


@pytest.mark.parametrize(("prompt", "hit"), [(252, 256), (200, 192), (257, 256)])
def test_where_one_state_is_kept_the_next_turn_hits_the_last_grid_point(prompt, hit):
    cache = ExpectedCache(CHUNK)
    first, answer = list(range(prompt)), list(range(900, 912))
    cache.serve(first, answer)
    assert cache.serve([*first, *answer, 1, 2], [9, 9]) == hit


def test_a_coarse_track_interval_keeps_fewer_states_of_decoding():
    cache = ExpectedCache(changed(CHUNK, decode_grid=256))
    first, answer = list(range(190)), list(range(900, 912))
    cache.serve(first, answer)
    assert cache.serve([*first, *answer, 1], [9, 9]) == 128


@pytest.mark.parametrize("traits", [EXACT, CHUNK])
def test_the_second_occurrence_may_hit_a_chunk_boundary(traits):
    chunked = changed(traits, chunk_tokens=128)
    branch = 960 if traits.mode == "chunk" else 1000
    assert continuations(chunked, 1000)[:3] == [0, 896, branch]
    never = changed(chunked, chunk_boundary="never")
    assert continuations(never, 1000)[:3] == [0, 0, branch]
    assert continuations(chunked, 1000, keeps_unasked=False)[:3] == [0, 0, branch]


def test_a_chunk_that_is_off_the_grid_ends_on_it():
    assert continuations(changed(CHUNK, chunk_tokens=100), 1000)[1] == 960


@pytest.mark.parametrize("traits", [EXACT, SPLIT, CHUNK])
def test_pages_bound_what_is_hit(traits):
    paged = changed(traits, page_size=64, checkpoint_grid=64, decode_grid=64)
    assert continuations(paged, 250) == [0, 0, 192, 192]
    cache = ExpectedCache(paged)
    assert [cache.serve(range(256), [9] * 8) for _ in range(3)] == [0, 0, 192]


def test_a_cut_moves_the_chunk_boundaries_behind_it():
    prompt, other = list(range(400)), [*range(100), *range(1000, 1300)]
    hits = {}
    for traits in (EXACT, SPLIT):
        cache = ExpectedCache(changed(traits, chunk_tokens=128))
        cache.serve(prompt, [9] * 8)
        cache.serve(other, [9] * 8)
        hits[traits.mode] = cache.serve([*other[:240], -1], [9] * 8)
    assert hits == {"exact": 128, "split": 228}


def test_traits_are_read_from_the_server():
    traits = ServerTraits.from_server_info(info())
    assert (traits.mode, traits.checkpoint_grid, traits.decode_grid) == ("chunk", 64, 256)
    assert (traits.page_size, traits.chunk_tokens) == (1, 4096)
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
    traits = ServerTraits.from_server_info(info(tuning=tuning))
    assert (traits.prompt_end, traits.chunk_boundary) == expected


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({**info(), "internal_states": [{}]}, "does not run --cache hybrid-marconi"),
        (info(error="boom"), "boom"),
        (info(branch_checkpoint="other"), "unknown branch_checkpoint 'other'"),
    ],
)
def test_servers_that_nothing_can_be_expected_of(reply, message):
    with pytest.raises(UnsupportedServer, match=message):
        ServerTraits.from_server_info(reply)

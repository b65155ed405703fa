"""Sessions (``/open_session``): turns hit, and neither closing nor refusing loses a slot."""

import contextlib
import time

import pytest
import requests
from comparison import Comparison, answer_of
from crowding import QUEUED
from streams import Stream
from workload import tokens

FIRST = tokens(150, 1)


def post(server, path, **fields):
    response = requests.post(f"{server.url}/{path}", json=fields, timeout=60)
    response.raise_for_status()
    return response


@contextlib.contextmanager
def session(server):
    name = post(server, "open_session", capacity_of_str_len=10000).json()
    try:
        yield name
    finally:
        post(server, "close_session", session_id=name)


def turn(server, name, prompt, length, last=None, **fields):
    """A turn of a session, served at once; returns the response."""
    params = {"id": name} if last is None else {"id": name, "rid": last["meta_info"]["id"]}
    return server.generate(
        prompt,
        length,
        session_params={**params, **fields},
        return_logprob=True,
        top_logprobs_num=2,
    )


def test_turns_hit_what_the_session_computed(crowded):
    crowded.flush()
    comparison = Comparison(crowded)
    with session(crowded) as name:
        first = turn(crowded, name, FIRST, 20)
        history = [*FIRST, *first["output_ids"]]
        second = turn(crowded, name, tokens(30, 2), 6, first)
        assert second["meta_info"]["cached_tokens"] == len(history) - 1
        comparison.add([*history, *tokens(30, 2)], 6, answer_of(second))
        # Another way on, from the first turn's prompt.
        other = turn(crowded, name, tokens(30, 3), 6, first, drop_previous_output=True)
        comparison.add([*FIRST, *tokens(30, 3)], 6, answer_of(other))
        again = turn(crowded, name, tokens(30, 4), 6, first)
        assert again["meta_info"]["cached_tokens"] == len(history) - 1
        comparison.add([*history, *tokens(30, 4)], 6, answer_of(again))
    comparison.check()


def test_a_session_closed_while_its_request_runs(crowded):
    crowded.flush()
    comparison = Comparison(crowded)
    name = post(crowded, "open_session", capacity_of_str_len=10000).json()
    first = turn(crowded, name, FIRST, 8)
    prompt = [*FIRST, *first["output_ids"], *tokens(10, 5)]
    params = {"id": name, "rid": first["meta_info"]["id"]}
    running = Stream(crowded, tokens(10, 5), 80, session_params=params).running()
    post(crowded, "close_session", session_id=name)
    assert not running.is_done
    answer = answer_of(running.done().response)
    comparison.add(prompt, 80, answer)
    following = comparison.ask([*prompt, *answer.tokens, 33, 34], 4)
    assert following.hit == len(prompt) + 79
    comparison.check()
    with pytest.raises(requests.HTTPError):
        turn(crowded, name, FIRST, 2)


def test_a_turn_that_is_aborted_while_it_runs(crowded):
    crowded.flush()
    with session(crowded) as name:
        first = turn(crowded, name, FIRST, 8)
        params = {"id": name, "rid": first["meta_info"]["id"]}
        running = Stream(crowded, tokens(10, 5), 500, session_params=params).running()
        post(crowded, "abort_request", rid=running.info["id"])
        assert running.done().info["finish_reason"]["type"] == "abort"
        again = turn(crowded, name, tokens(10, 6), 4, first)
        assert again["meta_info"]["cached_tokens"] >= len(FIRST)
    crowded.flush()


def test_a_turn_driven_out_of_the_queue_leaves_no_slot_behind(crowded):
    """It was matched, and waits for tokens, when one of higher priority needs its place."""
    crowded.flush()
    with session(crowded) as name:
        first = turn(crowded, name, FIRST, 8)
        params = {"id": name, "rid": first["meta_info"]["id"]}
        big = Stream(crowded, tokens(40, 7), 1500, priority=0).running()
        waiting = Stream(crowded, tokens(9, 8), 3500, priority=-2, session_params=params)
        wait_until_queued(crowded, 1)
        others = [Stream(crowded, tokens(40, 9), 3500, priority=-1) for _ in range(QUEUED - 1)]
        wait_until_queued(crowded, QUEUED)
        high = Stream(crowded, tokens(40, 10), 4, priority=5).done()
        assert waiting.done().is_refused
        assert high.info["finish_reason"]["type"] == "length"
        post(crowded, "abort_request", abort_all=True)
        for stream in (big, *others):
            assert stream.done().info["finish_reason"]["type"] == "abort"
    crowded.flush()  # refused by a scheduler that has ended
    assert crowded.generate(FIRST, 2)["meta_info"]["cached_tokens"] == 0


def wait_until_queued(server, count):
    """Wait until ``count`` requests wait for admission."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        loads = requests.get(f"{server.url}/v1/loads", timeout=60).json()["loads"]
        if loads[0]["num_waiting_reqs"] == count:
            return
    pytest.fail(f"{count} requests never waited")

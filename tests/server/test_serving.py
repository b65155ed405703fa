"""What a real server hits and answers, in every strategy."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from workload import (
    NOISE,
    REQUESTS,
    counters,
    first_difference,
    hit,
    prompts,
    run,
    sharing,
    tokens,
)


@pytest.mark.parametrize("shared", [63, 64, 65, 128, 250, 1000])
def test_a_shared_prefix_hits_from_its_third_occurrence(served, shared):
    server, setup = served
    server.flush()
    hits = [hit(server, sharing(shared, i)) for i in range(4)]
    third = setup.reachable(shared)
    assert [hits[0], *hits[2:]] == [0, third, third]
    # The second may start from a chunk boundary; in a tiny pool these are thinned.
    boundary = min(setup.second_hit(shared), third)
    assert hits[1] == boundary or (setup.slots == 8 and hits[1] in range(0, boundary, setup.chunk))


def test_six_at_once_share_their_prefix_afterwards(served):
    server, setup = served
    server.flush()
    before = counters(server)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: hit(server, sharing(250, i)), range(6)))
    assert hit(server, sharing(250, 6)) >= min(setup.second_hit(250), setup.reachable(250))
    assert hit(server, sharing(250, 7)) == setup.reachable(250)
    assert counters(server)["requests"] == before["requests"] + 8


def test_an_identical_prompt_hits_all_but_its_last_token(served):
    server, setup = served
    server.flush()
    prompt = tokens(301, 5)
    hits = [hit(server, prompt) for _ in range(4)]
    assert hits[0] == 0 and hits[2:] == [setup.reachable(300)] * 2


def test_a_conversation_continues_from_its_own_output(served):
    server, setup = served
    server.flush()
    prompt = tokens(200, 6)
    answer = server.generate(prompt, 100)["output_ids"]
    following = [*prompt, *answer, *tokens(7, 8)]
    assert hit(server, following) == setup.reachable(len(prompt) + len(answer) - 1)


def test_conversations_with_short_answers_never_fall_a_turn_behind(served):
    server, setup = served
    server.flush()
    talks = [tokens(150, 50 + i) for i in range(3)]
    last = [0] * len(talks)
    for turn in range(4):
        for i, talk in enumerate(talks):
            response = server.generate(talk, 5)
            assert response["meta_info"]["cached_tokens"] == last[i], (turn, i)
            last[i] = setup.reachable(len(talk) + 4)
            talk += response["output_ids"] + tokens(130, 100 * turn + i)


def stop_at(server, prompt, length):
    """Generate ``length`` tokens and stop at the last by its id; None if it came before."""
    output = server.generate(prompt, length)["output_ids"]
    if output[-1] in output[:-1]:
        return None
    server.flush()
    params = {"temperature": 0, "max_new_tokens": length + 40, "stop_token_ids": [output[-1]]}
    body = {"input_ids": prompt, "sampling_params": params}
    response = requests.post(f"{server.url}/generate", json=body, timeout=120).json()
    return output if response["meta_info"]["completion_tokens"] == length else None


def test_a_state_that_a_step_in_flight_overwrites_is_not_handed_over(served):
    # The first decode step lies on the grid, and so does the one beyond the stop.
    server, setup = served
    tried, enough = 0, 8 if setup.branch_checkpoint == "chunk" else 3
    for seed in range(200, 260):
        prompt = tokens(127, seed)
        server.flush()
        output = stop_at(server, prompt, 65)
        if output is None:
            continue
        following = [*prompt, *output[:20], *tokens(3, seed)]
        warm = server.generate(following, 12)["output_ids"]
        server.flush()
        assert server.generate(following, 12)["output_ids"] == warm, seed
        tried += 1
        if tried == enough:
            return
    pytest.fail("no prompt whose 65th token is new")


def test_mixed_load_in_small_pools_answers_as_without_a_cache(served, reference):
    server, _ = served
    server.flush()
    before = counters(server)
    responses = run(server, prompts())
    margins = [
        margin
        for response, expected in zip(responses, reference, strict=True)
        if (margin := first_difference(response["output_ids"], expected)) is not None
    ]
    assert all(margin <= NOISE for margin in margins), margins
    assert len(margins) <= REQUESTS // 100, margins
    after = counters(server)
    assert after["hit_tokens"] > before["hit_tokens"]
    assert after["evicted_states"] > before["evicted_states"]
    server.flush()  # refused while anything is held

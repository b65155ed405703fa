"""Short prompts, short answers, states a token apart: where windows and slots run out."""

import pytest
from comparison import Comparison, answer_of
from workload import sharing, tokens

from sglang_hybrid.model.tokenizer import TURN_END_ID

WINDOW = 3
"""Inputs before a token that its convolution reads."""


@pytest.fixture
def roomy(served):
    """A server with exact states, and slots for all that a test here leaves."""
    server, setup = served
    if setup.branch_checkpoint != "exact" or setup.slots <= 8:
        pytest.skip("evicts, or keeps no exact states")
    server.flush()
    return server, setup


def other_than(token: int) -> int:
    return 33 if token != 33 else 34


@pytest.mark.parametrize("tail", [1, 4])
def test_a_branch_a_few_tokens_behind_the_hit(roomy, tail):
    """The convolution window of such a state begins before the first token computed."""
    server, setup = roomy
    comparison, trunk, base = Comparison(server), tokens(300, 1), 100

    def branch(depth, seed):
        return [*trunk[:depth], other_than(trunk[depth]), *tokens(tail - 1, seed)]

    comparison.ask(trunk, 2)
    comparison.ask(branch(base, 0), 4)
    depths = range(base + 1, base + WINDOW + 3)
    for seed in (1, 2):
        for depth in depths:
            comparison.ask(branch(depth, seed), 4)
    found = [answer.hit for answer in comparison.answers[2:]]
    one_before = [setup.reachable(depth - 1) for depth in depths]
    assert found == one_before + [setup.reachable(depth) for depth in depths]
    comparison.check()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_prompts_shorter_than_the_window(roomy, length):
    server, setup = roomy
    comparison, prompt = Comparison(server), tokens(length, 77)
    for output in (0, 1, 2, 6):
        answer = comparison.ask(prompt, output)
        following = comparison.ask([*prompt, *answer.tokens, *tokens(2, output)], 4)
        if setup.page == 1:
            assert following.hit >= max(length, length + output - 1)
    comparison.check()


@pytest.mark.parametrize("length", [100, 127])
def test_stop_tokens_and_the_step_in_flight(roomy, length):
    """The step beyond the stop has been computed when the request is found to have ended."""
    server, setup = roomy
    prompt = tokens(length, 12)
    output = server.generate(prompt, 66)["output_ids"]
    ends = [
        end
        for end in (1, 3, 64, 65)
        if output[end - 1] not in output[: end - 1] and TURN_END_ID not in output[:end]
    ]
    assert len(ends) > 1
    for end in ends:
        server.flush()
        comparison, stop = Comparison(server), {"stop_token_ids": [output[end - 1]]}
        answer = comparison.ask(prompt, 90, ignore_eos=False, **stop)
        assert answer.tokens == output[:end]
        following = comparison.ask([*prompt, *answer.tokens, *tokens(2, 7)], 6)
        last = length + end - 1
        assert following.hit in {setup.reachable(last), setup.reachable(last + 1)}
        comparison.ask([*prompt, *answer.tokens[: max(0, end - 3)], 33], 6)
        comparison.check()


def test_several_answers_to_one_prompt(roomy):
    server, _ = roomy
    comparison, options = Comparison(server), {"return_logprob": True, "top_logprobs_num": 2}
    for prompt in (sharing(151, 1), sharing(151, 2), sharing(151, 3)):
        for response in server.generate(prompt, 6, {"n": 3}, **options):
            comparison.add(prompt, 6, answer_of(response))
    comparison.check()


def test_a_branch_in_every_chunk(roomy):
    server, setup = roomy
    comparison, trunk = Comparison(server), tokens(700, 5)
    depths = range(37, 660, 178)
    comparison.ask(trunk, 2)
    for seed in (0, 1):
        for depth in depths:
            own = [other_than(trunk[depth]), *tokens(9, depth + seed)]
            comparison.ask([*trunk[:depth], *own], 2)
    found = [answer.hit for answer in comparison.answers[-len(depths) :]]
    assert found == [setup.reachable(depth) for depth in depths]
    comparison.check()

"""Served log-probabilities against those of a prefill of the same tokens, as SGLang tests it.

The estimate of the Kullback-Leibler divergence and its limit are those of SGLang's
`kl_test_utils`.
"""

import math

from workload import sharing, tokens

LIMIT = 0.005


def divergence(server, served) -> float:
    """Mean over the tokens of ``(prompt, response)`` pairs; empties the cache."""
    terms = []
    for prompt, response in served:
        output = response["output_ids"]
        decoded = [entry[0] for entry in response["meta_info"]["output_token_logprobs"]]
        server.flush()
        # A prefill with its own log-probabilities computes every token.
        whole = server.generate([*prompt, *output], 0, return_logprob=True, logprob_start_len=0)
        assert whole["meta_info"]["cached_tokens"] == 0
        computed = [entry[0] for entry in whole["meta_info"]["input_token_logprobs"]]
        ratios = [a - b for a, b in zip(computed[-len(output) :], decoded, strict=True)]
        terms += [math.exp(ratio) - 1 - ratio for ratio in ratios]
    return sum(terms) / len(terms)


def branches(server, shared: int, output: int = 30) -> list[tuple]:
    """Serve the last two of four prompts that share a prefix."""
    for i in range(2):
        server.generate(sharing(shared, i, 20), 4)
    prompts = [sharing(shared, i, 20) for i in (2, 3)]
    return [(prompt, server.generate(prompt, output, return_logprob=True)) for prompt in prompts]


def hits(served) -> list[int]:
    return [response["meta_info"]["cached_tokens"] for _, response in served]


def test_branch_hits(served):
    server, setup = served
    for shared in (65, 251):
        server.flush()
        answers = branches(server, shared)
        assert hits(answers) == [setup.reachable(shared)] * 2
        assert divergence(server, answers) < LIMIT


def test_turns_of_a_conversation(served):
    server, setup = served
    server.flush()
    talk, turns, known = tokens(133, 1), [], 0
    for turn in range(4):
        turns.append((talk, server.generate(talk, 50, return_logprob=True)))
        assert hits(turns)[-1] == known
        known = setup.reachable(len(talk) + 49)
        talk = [*talk, *turns[-1][1]["output_ids"], *tokens(9, turn)]
    assert divergence(server, turns) < LIMIT

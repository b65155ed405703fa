"""Prompts of the server tests; two hundred mixed ones, and how two servers' outputs compare."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests

REQUESTS, CONCURRENCY = 200, 4

# Noise of the small model in float32, the default of the CPU platform: a prefix computed
# in other batch and chunk shapes moves a log-probability by less than this.
NOISE = 0.01


@dataclass(frozen=True)
class Output:
    """Greedy tokens of one request, and how far the best was ahead of the second."""

    tokens: list[int]
    margins: list[float]


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(32, 127) for _ in range(count)]


def sharing(shared: int, continuation: int, own: int = 81) -> list[int]:
    """A prompt whose first ``shared`` tokens are those of every continuation."""
    return [*tokens(shared, shared), 32 + continuation, *tokens(own - 1, 1000 + continuation)]


def hit(server, prompt, length=4) -> int:
    return server.generate(prompt, length)["meta_info"]["cached_tokens"]


def prompts(seed: int = 0) -> list[tuple[list[int], int]]:
    """``(prompt, max_new_tokens)``: shared prefixes of several lengths, and unique ones."""
    rng = random.Random(seed)

    def more(count):
        return [rng.randrange(32, 127) for _ in range(count)]

    families = [more(length) for length in (70, 128, 250, 400, 33, 200)]
    trunks = [family + more(60) for family in families for _ in range(2)]
    made = []
    for _ in range(REQUESTS):
        start = rng.choice([*families, *trunks, []])
        made.append((start + more(rng.randrange(5, 120)), rng.randrange(2, 20)))
        if rng.random() < 0.15:  # the same prompt again, or a part of an earlier one
            prompt, length = rng.choice(made)
            made.append((prompt[: rng.randrange(1, len(prompt) + 1)], length))
    return made[:REQUESTS]


def run(server, work, **options) -> list[dict]:
    """Responses of ``work``, ``CONCURRENCY`` requests at a time."""

    def one(item):
        return server.generate(item[0], item[1], **options)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(one, work))


def reference_outputs(server) -> list[Output]:
    outputs = []
    for response in run(server, prompts(), return_logprob=True, top_logprobs_num=2):
        info = response["meta_info"]
        margins = [top[0][0] - top[1][0] for top in info["output_top_logprobs"]]
        outputs.append(Output(response["output_ids"], margins))
    return outputs


def first_difference(output: list[int], reference: Output) -> float | None:
    """Margin at the first token that differs, or None if there is none."""
    if output == reference.tokens:
        return None
    for token, expected, margin in zip(output, reference.tokens, reference.margins, strict=True):
        if token != expected:
            return margin
    raise AssertionError(f"lengths differ: {len(output)} and {len(reference.tokens)}")


def counters(server) -> dict:
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    return info["internal_states"][0]["hybrid_marconi"]["counters"]

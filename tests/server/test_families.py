"""Each model family on a real CPU server: exact hits, whose answers are those of cold requests."""

import json
import random

import pytest
import torch
from cpu_server import launch
from transformers import AutoModelForCausalLM
from workload import counters

from sglang_hybrid.model.families import make_falcon_h1, make_nemotron_h
from sglang_hybrid.model.kimi_linear import make_kimi_linear
from sglang_hybrid.model.qwen3_next import make_qwen3_next

OWN, OUTPUT = 40, 16
BOUND = 1e-3
"""Of a logprob's difference: rounding leaves some 1e-5, a state one token early 0.1 and more."""

FAMILIES = {
    "falcon_h1": make_falcon_h1,
    "nemotron_h": make_nemotron_h,
    "qwen3_next": make_qwen3_next,
    "kimi_linear": make_kimi_linear,
}
# Whose answers are compared with those of transformers too.
ALSO_TRANSFORMERS = ("qwen3_next", "kimi_linear")
CONFIG = {"policy": "utility", "min_gain_tokens": 1, "prompt_end": "always", "strict": True}


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    """(server, model that transformers is to run, or None)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = FAMILIES[request.param](folder / "model")
    flags = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(CONFIG)]
    flags += ["--mamba-radix-cache-strategy", "extra_buffer"]
    with launch(model, None, *flags, log=folder / "server.log") as running:
        yield running, model if request.param in ALSO_TRANSFORMERS else None


def text(rng, tokens):
    return [rng.randrange(0x20, 0x7F) for _ in range(tokens)]


def largest_difference(one, other):
    pairs = zip(
        one["meta_info"]["output_token_logprobs"],
        other["meta_info"]["output_token_logprobs"],
        strict=True,
    )
    return max(abs(a[0] - b[0]) for a, b in pairs)


@pytest.mark.parametrize("shared", [63, 64, 65, 250, 1000, 1024])
def test_a_shared_prefix_hits_exactly(served, shared):
    server, model = served
    rng = random.Random(shared)
    prefix = text(rng, shared)
    prompts = [[*prefix, 0x20 + i, *text(rng, OWN)] for i in range(4)]
    server.flush()
    before = counters(server)
    warm = [server.generate(prompt, OUTPUT, return_logprob=True) for prompt in prompts]
    assert [answer["meta_info"]["cached_tokens"] for answer in warm] == [0, 0, shared, shared]
    after = counters(server)
    assert after["prefill_passes"] - before["prefill_passes"] == len(prompts)
    assert after["branch_checkpoints"] - before["branch_checkpoints"] == 1
    assert after["prompt_end_checkpoints"] - before["prompt_end_checkpoints"] == len(prompts)
    server.flush()
    cold = server.generate(prompts[3], OUTPUT, return_logprob=True)
    assert cold["meta_info"]["cached_tokens"] == 0
    assert warm[3]["output_ids"] == cold["output_ids"]
    assert largest_difference(warm[3], cold) < BOUND
    if model is not None and shared == 250:
        assert warm[3]["output_ids"] == by_transformers(model, prompts[3])


@pytest.mark.parametrize("gain", [1, 2, 3])
def test_a_branch_right_behind_the_hit(served, gain):
    # The convolution's window reaches back behind what the prefill computes.
    server, _ = served
    rng = random.Random(gain)
    prefix = text(rng, 100)
    deeper = [*prefix, *text(rng, gain)]
    server.flush()
    for end in range(3):
        server.generate([*prefix, 0x20 + end, *text(rng, OWN)], OUTPUT)
    for end in range(2):
        server.generate([*deeper, 0x20 + end, *text(rng, OWN)], OUTPUT)
    prompt = [*deeper, 0x20 + 2, *text(rng, OWN)]
    warm = server.generate(prompt, OUTPUT, return_logprob=True)
    assert warm["meta_info"]["cached_tokens"] == len(deeper)
    server.flush()
    cold = server.generate(prompt, OUTPUT, return_logprob=True)
    assert warm["output_ids"] == cold["output_ids"]
    assert largest_difference(warm, cold) < BOUND


def test_a_conversation_continues_where_it_ended(served):
    server, _ = served
    rng = random.Random(7)
    server.flush()
    talk = text(rng, 90)
    for _ in range(3):
        answer = server.generate(talk, OUTPUT, return_logprob=True)
        ended = len(talk) + OUTPUT - 1
        talk = [*talk, *answer["output_ids"], *text(rng, 21)]
        following = server.generate(talk, OUTPUT, return_logprob=True)
        assert following["meta_info"]["cached_tokens"] == ended
    server.flush()
    cold = server.generate(talk, OUTPUT, return_logprob=True)
    assert following["output_ids"] == cold["output_ids"]
    assert largest_difference(following, cold) < BOUND


def by_transformers(model, prompt):
    """Greedy answer of an implementation that shares nothing with SGLang or with us."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    output = loaded.generate(
        torch.tensor([prompt]), do_sample=False, min_new_tokens=OUTPUT, max_new_tokens=OUTPUT
    )
    return output[0, len(prompt) :].tolist()

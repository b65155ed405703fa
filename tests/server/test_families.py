"""Each model family on a real CPU server: a prefix hit changes no greedy token."""

import random

import pytest
import torch
from cpu_server import launch
from transformers import AutoModelForCausalLM

from sglang_hybrid.model.families import make_falcon_h1, make_nemotron_h
from sglang_hybrid.model.kimi_linear import make_kimi_linear
from sglang_hybrid.model.make_model import make_small_model
from sglang_hybrid.model.qwen3_next import make_qwen3_next

SHARED, OWN, OUTPUT = 232, 40, 16
ON_GRID = 192
MARCONI = ("--cache", "hybrid-marconi", "--mamba-radix-cache-strategy")
# name -> what writes the model, flags, what a third prompt hits
CASES = {
    "granitemoehybrid": (make_small_model, (), ON_GRID),
    "falcon_h1": (make_falcon_h1, (), ON_GRID),
    "nemotron_h": (make_nemotron_h, (), ON_GRID),
    "qwen3_next_extra_buffer": (make_qwen3_next, (*MARCONI, "extra_buffer"), SHARED),
    "qwen3_next_no_buffer": (
        make_qwen3_next,
        (*MARCONI, "no_buffer", "--disable-overlap-schedule"),
        SHARED,
    ),
    "kimi_linear": (make_kimi_linear, (*MARCONI, "extra_buffer"), ON_GRID),
}
# Whose answers are compared with those of transformers too.
ALSO_TRANSFORMERS = ("qwen3_next_no_buffer", "kimi_linear")


@pytest.fixture(scope="module", params=CASES)
def served(request, tmp_path_factory):
    """(server, what a third prompt hits, model that transformers is to run, or None)."""
    make, flags, third_hit = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = make(folder / "model")
    with launch(model, None, *flags, log=folder / "server.log") as running:
        yield running, third_hit, model if request.param in ALSO_TRANSFORMERS else None


def test_hits_and_misses_agree(served):
    server, third_hit, model = served
    rng = random.Random(0)

    def text(tokens):
        return [rng.randrange(0x20, 0x7F) for _ in range(tokens)]

    shared = text(SHARED)
    prompts = [shared + text(OWN) for _ in range(4)]
    server.flush()
    warm = [server.generate(prompt, OUTPUT, return_logprob=True) for prompt in prompts]
    cached = [answer["meta_info"]["cached_tokens"] for answer in warm]
    assert cached == [0, 0, third_hit, third_hit]
    for prompt, hit in list(zip(prompts, warm, strict=True))[2:]:
        server.flush()
        miss = server.generate(prompt, OUTPUT, return_logprob=True)
        assert miss["meta_info"]["cached_tokens"] == 0
        assert hit["output_ids"] == miss["output_ids"]
        pairs = zip(
            hit["meta_info"]["output_token_logprobs"],
            miss["meta_info"]["output_token_logprobs"],
            strict=True,
        )
        assert max(abs(a[0] - b[0]) for a, b in pairs) < 0.1
    if model is not None:
        assert warm[-1]["output_ids"] == by_transformers(model, prompts[-1])


def by_transformers(model, prompt):
    """Greedy answer of an implementation that shares nothing with SGLang or with us."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    answer = loaded.generate(
        torch.tensor([prompt]), do_sample=False, min_new_tokens=OUTPUT, max_new_tokens=OUTPUT
    )
    return answer[0, len(prompt) :].tolist()

"""The files of the small model: the same everywhere, and text that survives a round trip."""

import argparse
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.model import make_model as mm
from sglang_hybrid.model.tokenizer import TURN_END, TURN_END_ID, build_tokenizer

SHA256 = "d79abd6197a5905c02a3e22e24a27af0a94633b6e14b43310b326b13493bf4e2"


@pytest.fixture(scope="module")
def chat_tokenizer(small_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(small_model)


def test_the_weights_are_the_same_on_every_machine(small_model):
    assert mm.weights_sha256(small_model) == SHA256


def test_another_seed_gives_other_weights(small_model, tmp_path):
    other = mm.make_small_model(tmp_path, seed=1)
    assert mm.weights_sha256(other) != mm.weights_sha256(small_model)


def test_the_command_writes_a_loadable_model(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    mm.add_arguments(parser)
    assert mm.run(parser.parse_args([str(tmp_path / "made")])) == 0
    assert "made" in capsys.readouterr().out
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["architectures"] == ["GraniteMoeHybridForCausalLM"]


@given(st.text(max_size=60))
def test_any_text_is_read_byte_by_byte(text):
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if "<|" not in text:
        assert ids == list(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(mm.SAMPLED_BYTES), max_size=60))
def test_sampled_tokens_survive_text(ids):
    tokenizer = build_tokenizer()
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids


def test_nothing_else_is_sampled(reference):
    """Whatever was read: probabilities at temperature 1."""
    allowed = [*mm.SAMPLED_BYTES, TURN_END_ID]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 260, (400,), generator=generator).tolist()
    probabilities = reference.extend(ids, reference.empty()).double().softmax(-1)
    assert (1 - probabilities[:, allowed].sum(-1)).max() < 1e-9


def test_turns_end_rarely(reference):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0x20, 0x7F, (400,), generator=generator).tolist()
    probabilities = reference.extend(ids, reference.empty()).softmax(-1)
    assert probabilities[:, TURN_END_ID].mean() < 0.01


@pytest.mark.parametrize("reply", ["plain", " spaces around ", "line\nbreak", "{{ braces }}"])
def test_a_conversation_extends_its_own_prompt(chat_tokenizer, reply):
    """The next turn's prompt begins with the last prompt and the generated text."""
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé? "}]

    def render(messages):
        return chat_tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]

    before = render(history)
    after = render(
        [*history, {"role": "assistant", "content": reply}, {"role": "user", "content": "And?"}]
    )
    said = [*reply.encode(), chat_tokenizer.convert_tokens_to_ids(TURN_END)]
    assert after[: len(before) + len(said)] == before + said

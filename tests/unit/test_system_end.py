"""The end of the system message, found through chat templates of several kinds."""

from array import array

import pytest

from sglang_hybrid.adapter.system_end import find_system_end
from sglang_hybrid.model.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
START, END = (TOKENIZER.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
SPECIAL = frozenset({START, END})


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def chatml(chat, default=None):
    roles = [message["role"] for message in chat]
    if default and "system" not in roles:
        chat = [{"role": "system", "content": default}, *chat]
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
    return encode(text + "<|im_start|>assistant\n")


def bracketed(chat):
    """System text inside the first user message, between ordinary words."""
    system = "".join(m["content"] for m in chat if m["role"] == "system")
    user = chat[-1]["content"]
    head = f"<<SYS>>\n{system}\n<</SYS>>\n\n" if system else ""
    return encode(f"[INST] {head}{user} [/INST]")


def merged(chat):
    return encode("\n\n".join(message["content"] for message in chat))


def without_system(chat):
    if chat[0]["role"] == "system":
        raise ValueError("System role not supported")
    return chatml(chat)


def chat(system, *turns):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return [{"role": "system", "content": system}, *messages] if system else messages


@pytest.mark.parametrize("render", [chatml, bracketed], ids=["chatml", "bracketed"])
def test_found_after_the_system_message_whatever_follows(render):
    found = find_system_end(render, SPECIAL)
    system = "You sell shoes.\n\nNever say <b>no</b>."
    ends = {
        found.find(array("q", render(chat(system, *turns))))
        for turns in (("hello",), ("\n\nhello", "Yes?", "no"), ("42",))
    }
    assert len(ends) == 1
    (end,) = ends
    text = TOKENIZER.decode(render(chat(system, "hello"))[:end], skip_special_tokens=False)
    assert text.endswith(
        system + ("<|im_end|>\n<|im_start|>" if render is chatml else "\n<</SYS>>\n\n")
    )


def test_a_prompt_without_a_system_message_has_no_end():
    found = find_system_end(chatml, SPECIAL)
    assert found.find(array("q", chatml(chat(None, "hello", "Yes?", "no")))) is None
    assert found.find(array("q", encode("some raw text"))) is None
    assert found.find(array("q")) is None
    assert found.find(array("q", encode("<|im_start|>system\nnever closed"))) is None


def test_a_default_system_message_counts():
    def render(messages):
        return chatml(messages, default="You are helpful.")

    found = find_system_end(render, SPECIAL)
    end = found.find(array("q", render(chat(None, "hello"))))
    assert end == len(encode("<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>"))


@pytest.mark.parametrize("render", [merged, without_system])
def test_templates_that_do_not_tell_are_left_alone(render):
    assert find_system_end(render, SPECIAL) is None

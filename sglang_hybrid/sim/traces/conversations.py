"""Conversations of text as the requests that a chat client sends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_hybrid.sim.trace import IntArray, TraceBuilder
from sglang_hybrid.sim.traces.source import member
from sglang_hybrid.sim.traces.tokenizers import Tokenizer

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "exit": "user",  # how mini-swe-agent notes the end of a run
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
_THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_CACHED_TEXTS = 4096


@dataclass(frozen=True)
class Message:
    """What one side said; ``created`` is in seconds, None where unknown."""

    role: str
    text: str
    created: float | None = None


@dataclass(frozen=True)
class Rendering:
    """How messages become text.

    Attributes:
        before: what opens a message; ``{role}`` is filled in. It ends the prompt.
        end: what ends a message. The model generates it.
        after: what the template adds behind a message.
        keeps_reasoning: think blocks stay in the history.
    """

    before: str
    end: str
    after: str
    keeps_reasoning: bool
    description: str


_CHATML = ("<|im_start|>{role}\n", "<|im_end|>", "\n")
RENDERINGS = {
    "chatml": Rendering(*_CHATML, True, "as ChatML without tool schemas"),
    "strip-reasoning": Rendering(
        *_CHATML,
        False,
        "as ChatML without tool schemas, think blocks of earlier replies left out, so that the "
        "history leaves what was decoded",
    ),
    "plain": Rendering("", "\n", "", True, "as their text, one after another, without roles"),
}


@dataclass(frozen=True)
class Turn:
    """One request in tokens."""

    tokens: IntArray
    input_len: int
    system_len: int
    created: float | None


class TurnEncoder:
    """Conversations to turns.

    Messages are encoded one by one, so that a conversation that grows keeps its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, rendering: str) -> None:
        if rendering not in RENDERINGS:
            raise ValueError(
                f"rendering {rendering!r} is not allowed; allowed: {', '.join(RENDERINGS)}"
            )
        self.rendering = RENDERINGS[rendering]
        self._tokenizer = tokenizer
        self._cache: dict[str, IntArray] = {}

    def turns(self, messages: Sequence[Message]) -> Iterator[Turn]:
        """One turn per reply; a reply that nobody asked for only opens the history."""
        history: list[IntArray] = []
        length = system_len = 0
        asked = False
        for message in messages:
            before = self._ids(self.rendering.before.format(role=message.role))
            end, after = self._ids(self.rendering.end), self._ids(self.rendering.after)
            spoken = self._ids(message.text)
            if message.role == "assistant" and asked:
                tokens = np.concatenate((*history, before, spoken, end))
                yield Turn(tokens, length + len(before), system_len, message.created)
            asked = asked or message.role in ("user", "tool")
            kept = spoken
            if message.role == "assistant" and not self.rendering.keeps_reasoning:
                kept = self._ids(_THINKING.sub("", message.text))
            added = (before, kept, end, after)
            history += added
            length += sum(map(len, added))
            if message.role == "system" and not asked:
                system_len = length

    def _ids(self, text: str) -> IntArray:
        ids = self._cache.get(text)
        if ids is None:
            if len(self._cache) >= _CACHED_TEXTS:
                self._cache.clear()
            ids = self._cache[text] = self._tokenizer.encode(text)
        return ids


def add_conversation(
    builder: TraceBuilder, name: str, messages: Sequence[Message], encoder: TurnEncoder
) -> None:
    """Add the turns of a conversation under a session name of its own.

    Raises:
        ValueError: it has no turn.
    """
    latest = -np.inf
    count = len(builder)
    for turn in encoder.turns(messages):
        if turn.created is not None:
            latest = max(latest, turn.created)
        builder.add(
            turn.tokens,
            turn.input_len,
            len(turn.tokens) - turn.input_len,
            session=name,
            arrival=None if turn.created is None else latest,
            system_len=turn.system_len or None,
        )
    if len(builder) == count:
        raise ValueError("no reply after a message of a user or a tool")


def message_of(value: Any, role_key: str = "role", text_key: str = "content") -> Message:
    """A message in the form of OpenAI, or of ShareGPT with other keys.

    Raises:
        ValueError: ``value`` is none.
    """
    name = member(value, role_key, str)
    role = _ROLES.get(name)
    if role is None:
        raise ValueError(f"unknown {role_key} {name!r} of a message; allowed: {', '.join(_ROLES)}")
    parts = [_text(value.get(text_key))]
    if isinstance(value.get("reasoning_content"), str):
        parts[0] = f"<think>\n{value['reasoning_content']}\n</think>\n\n{parts[0]}"
    if value.get("tool_calls"):
        parts.append(json.dumps(value["tool_calls"], ensure_ascii=False))
    created = value.get("created")
    timed = isinstance(created, int | float) and not isinstance(created, bool)
    return Message(role, "".join(parts), float(created) if timed else None)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise ValueError("the content of a message is neither a string nor a list of parts")

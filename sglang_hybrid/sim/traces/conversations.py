"""Conversations of text as the requests that a chat client sends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_hybrid.sim.trace import IntArray, TraceBuilder, common_prefix
from sglang_hybrid.sim.traces.source import MAX_TOKENS, member, quoted, seconds
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
_THINK, _THOUGHT = "<think>", "</think>"
_CACHED_CHARS, _CACHE_ENTRY_CHARS = 1 << 24, 100
_NOTHING: IntArray = np.empty(0, dtype=np.int64)


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
    """One request in tokens.

    Attributes:
        keep: tokens that it shares with the turn before it, prompt and reply.
        own: its further tokens, int64.
    """

    keep: int
    own: IntArray
    input_len: int
    output_len: int
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
        self._cached_chars = 0

    def turns(self, messages: Sequence[Message]) -> Iterator[Turn]:
        """One turn per reply; a reply that nobody asked for only opens the history.

        Raises:
            ValueError: it grows beyond what a request can have.
        """
        # What the history has beyond that of the turn before, and how that turn ended.
        new: list[IntArray] = []
        shared, reply = 0, _NOTHING
        length = system_len = 0
        asked = False
        for message in messages:
            before = self._ids(self.rendering.before.format(role=message.role))
            end, after = self._ids(self.rendering.end), self._ids(self.rendering.after)
            spoken = self._ids(message.text)
            if message.role == "assistant" and asked:
                new += (before, spoken, end)
                own = np.concatenate(new)
                common = common_prefix(reply, own)
                input_len, output_len = length + len(before), len(spoken) + len(end)
                if input_len + output_len > MAX_TOKENS:
                    raise ValueError(f"a prompt and reply of more than {MAX_TOKENS} tokens")
                yield Turn(
                    shared + common,
                    own[common:],
                    input_len,
                    output_len,
                    system_len,
                    message.created,
                )
                new, shared = [], length
                reply = np.concatenate((before, spoken, end))
            asked = asked or message.role in ("user", "tool")
            kept = spoken
            if message.role == "assistant" and not self.rendering.keeps_reasoning:
                kept = self._ids(without_thoughts(message.text))
            added = (before, kept, end, after)
            new += added
            length += sum(map(len, added))
            if message.role == "system" and not asked:
                system_len = length

    def _ids(self, text: str) -> IntArray:
        ids = self._cache.get(text)
        if ids is None:
            ids = self._tokenizer.encode(text)
            if len(text) > _CACHED_CHARS:
                return ids
            if self._cached_chars + len(text) > _CACHED_CHARS:
                self._cache.clear()
                self._cached_chars = 0
            self._cache[text] = ids
            self._cached_chars += len(text) + _CACHE_ENTRY_CHARS
        return ids


def without_thoughts(text: str) -> str:
    """``text`` without its think blocks and the space behind each; one left open stays."""
    kept, start = [], 0
    while (opened := text.find(_THINK, start)) >= 0:
        closed = text.find(_THOUGHT, opened + len(_THINK))
        if closed < 0:
            break
        kept.append(text[start:opened])
        start = closed + len(_THOUGHT)
        while start < len(text) and text[start].isspace():
            start += 1
    return "".join((*kept, text[start:]))


def add_conversation(
    builder: TraceBuilder, name: str, messages: Sequence[Message], encoder: TurnEncoder
) -> int:
    """Add the turns of a conversation under a session name of its own; returns their own tokens.

    Raises:
        ValueError: it has no turn, or one that is too long; nothing is added.
    """
    turns = list(encoder.turns(messages))
    if not turns:
        raise ValueError("no reply after a message of a user or a tool")
    latest, parent = -np.inf, -1
    for turn in turns:
        if turn.created is not None:
            latest = max(latest, turn.created)
        request = builder.add_difference(
            turn.own,
            turn.input_len,
            turn.output_len,
            parent=parent if turn.keep else -1,
            keep=turn.keep,
            session=name,
            arrival=None if turn.created is None else latest,
            system_len=turn.system_len or None,
        )
        parent = request
    return sum(len(turn.own) for turn in turns)


def message_of(value: Any, role_key: str = "role", text_key: str = "content") -> Message:
    """A message in the form of OpenAI, or of ShareGPT with other keys.

    Raises:
        ValueError: ``value`` is none.
    """
    name = member(value, role_key, str)
    role = _ROLES.get(name)
    if role is None:
        raise ValueError(
            f"unknown {role_key} {quoted(name)} of a message; allowed: {', '.join(_ROLES)}"
        )
    parts = [_text(value.get(text_key))]
    if isinstance(value.get("reasoning_content"), str):
        parts[0] = f"<think>\n{value['reasoning_content']}\n</think>\n\n{parts[0]}"
    if value.get("tool_calls"):
        parts.append(json.dumps(value["tool_calls"], ensure_ascii=False))
    created = value.get("created")
    timed = isinstance(created, int | float) and not isinstance(created, bool)
    return Message(role, "".join(parts), seconds(value, "created") if timed else None)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text", "") for part in content]
        return "".join(text if isinstance(text, str) else json.dumps(text) for text in texts)
    raise ValueError("the content of a message is neither a string nor a list of parts")

"""Where the system message ends, found in token ids.

Requests reach the scheduler as token ids. At start-up a few chats are rendered through
the model's chat template, and what always stands before and after the system message is
kept as token ids; a prompt that begins with the one and contains the other tells where
its system message ends. A template for which that does not work is left alone.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# First and last letters differ, so that nothing but the template is common.
_SYSTEM = ("Answer briefly.", "You translate from French to Dutch", "7 rules, in order: be kind!")
_USER = ("What is the time?", "go on", "42 is the answer; why")

_LEAST_TOKENS = 3
"""A delimiter of fewer ordinary tokens could be part of any text."""

_LONGEST_ROLE = 16
"""Tokens that may stand between the last special token and the user's text (the name of a role)."""


@dataclass(frozen=True)
class SystemEnd:
    """Token ids around the system message.

    Attributes:
        header: what a prompt with a system message begins with.
        delimiter: what follows the message; the message ends where it does.
    """

    header: tuple[int, ...]
    delimiter: tuple[int, ...]

    def find(self, tokens: array[int]) -> int | None:
        """Tokens up to the end of the system message of a prompt, None if it has none."""
        start, size = len(self.header), len(self.delimiter)
        if len(tokens) < start + size or tuple(tokens[:start]) != self.header:
            return None
        ids = np.frombuffer(tokens, np.int64)
        first = np.flatnonzero(ids[start : len(ids) - size + 1] == self.delimiter[0]) + start
        for offset, token in enumerate(self.delimiter[1:], 1):
            first = first[ids[first + offset] == token]
        return int(first[0]) + size if len(first) else None


def of_tokenizer(tokenizer: Any, chat_template: str | None) -> SystemEnd | None:
    """What surrounds the system message in the chats of a served model.

    Args:
        tokenizer: SGLang's, or None where the server has none.
        chat_template: value of ``--chat-template``: a file, a name known to SGLang (whose
            template is not the tokenizer's: not looked into), or None.
    """
    text = None
    if chat_template is not None:
        if not os.path.isfile(chat_template) or chat_template.endswith(".json"):
            return None
        text = Path(chat_template).read_text(encoding="utf-8")
    if tokenizer is None or not (text or getattr(tokenizer, "chat_template", None)):
        return None

    def render(chat: list[dict[str, str]]) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.apply_chat_template(
            chat, chat_template=text, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return ids

    # No text of a message becomes one of these, unless it spells it out.
    special = {*getattr(tokenizer, "all_special_ids", ())}
    special.update(getattr(tokenizer, "added_tokens_decoder", ()))
    return find_system_end(render, frozenset(special))


def find_system_end(
    render: Callable[[list[dict[str, str]]], Sequence[int]], special_ids: frozenset[int]
) -> SystemEnd | None:
    """What surrounds the system message in the chats of a template.

    Args:
        render: token ids of a chat, generation prompt included; raises whatever it likes
            for a chat that the template refuses.
        special_ids: tokens that no text of a message contains.

    Returns:
        None where the template has no system message of its own, or nothing that tells
        its end with certainty.
    """
    try:
        chats = {
            (system, user): list(
                render([{"role": "system", "content": system}, {"role": "user", "content": user}])
            )
            for system in _SYSTEM
            for user in _USER
        }
    except Exception:  # templates are programs: "system role not supported" and the like
        return None
    shared = {system: _common_prefix([chats[system, user] for user in _USER]) for system in _SYSTEM}
    header = _common_prefix(list(shared.values()))
    delimiter = _common_prefix([head[::-1] for head in shared.values()])[::-1]
    # Text after a message may merge with what the next one begins with; special tokens do not.
    last = max((i for i, token in enumerate(delimiter) if token in special_ids), default=-1)
    if last >= 0:
        delimiter = delimiter[: last + 1]
    elif len(delimiter) < _LEAST_TOKENS:
        return None
    if not header or not delimiter:
        return None
    found = SystemEnd(tuple(header), tuple(delimiter))
    for (system, _user), ids in chats.items():
        depth = found.find(array("q", ids))
        # Beyond what chats of one system message share it would lie in the user's text;
        # farther from its end than the delimiter's cut-off rest, inside the message.
        rest = len(shared[system]) - (depth or 0)
        if depth is None or not 0 <= rest < _LONGEST_ROLE:
            return None
    return found


def _common_prefix(sequences: list[list[int]]) -> list[int]:
    length = 0
    for tokens in zip(*sequences, strict=False):
        if len(set(tokens)) != 1:
            break
        length += 1
    return sequences[0][:length]

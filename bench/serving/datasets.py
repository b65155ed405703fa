"""Files that the drivers send: sessions, agentic traces, ShareGPT chats, mooncake segments."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chat_traces import Conversation, Message, read_trace

_SPACES = 1 / 6
"""Share of the bytes of made-up text."""

_TEMPLATE_BYTES = 8
"""Allowance for what a chat template puts around a message."""

Between = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """How recorded conversations are made to fit a model.

    Attributes:
        keep: of every message one byte in so many, from its start.
        max_turns: of a conversation.
        max_bytes: a conversation ends before a longer prompt.
        reply_bytes: of the served model's replies, at most; they become history.
    """

    keep: int
    max_turns: int
    max_bytes: int
    reply_bytes: int

    def conversation(self, recorded: Conversation) -> list[list[Message]]:
        """The messages of each turn that were new to the model; may be empty."""
        turns: list[list[Message]] = []
        length = 0
        for turn in recorded.turns[: self.max_turns]:
            messages = [self._message(message) for message in turn.messages]
            length += sum(len(m["content"].encode()) + _TEMPLATE_BYTES for m in messages)
            if length > self.max_bytes:
                break
            turns.append(messages)
            length += self.reply_bytes + _TEMPLATE_BYTES
        return turns

    def _message(self, message: Message) -> Message:
        text = message["content"].encode()
        kept = text[: max(1, len(text) // self.keep)].decode(errors="ignore")
        return {"role": message["role"], "content": kept or "."}


def recorded_sessions(
    path: Path, cut: Cut, count: int, seed: int
) -> list[tuple[str, list[list[Message]]]]:
    """``count`` conversations of a chat trace in random order, with their names.

    Raises:
        OSError: the trace cannot be read.
        ValueError: it has too few conversations.
    """
    conversations = read_trace(path).conversations
    fitting = [(item.name, cut.conversation(item)) for item in conversations]
    fitting = [(name, turns) for name, turns in fitting if turns]
    if len(fitting) < count:
        raise ValueError(f"{path} has {len(fitting)} conversations that fit; {count} are needed")
    order = np.random.default_rng(seed).permutation(len(fitting))[:count]
    return [fitting[number] for number in order]


@dataclass(frozen=True)
class Branching:
    """Generated agent sessions: several attempts at each of some tasks.

    All sessions share a system message, those of a task its statement and what tools answered in
    its first turns; then the attempts part. Since replies are greedy, attempts that were told
    the same have the same history. Lengths are bytes, drawn between two bounds.

    Attributes:
        tasks, attempts: sessions are their product.
        turns: requests of a session.
        parts: turn at which an attempt parts from the others.
    """

    tasks: int
    attempts: int
    turns: Between
    parts: Between
    system: int
    statement: Between
    answer: Between

    def sessions(self, seed: int) -> list[tuple[str, list[list[Message]]]]:
        """In random order, with their names."""
        rng = np.random.default_rng(seed)
        system = {"role": "system", "content": words(rng, self.system)}
        made = []
        for task in range(self.tasks):
            statement = words(rng, _draw(rng, self.statement))
            common = [words(rng, _draw(rng, self.answer)) for _ in range(self.parts[1])]
            for attempt in range(self.attempts):
                parts = _draw(rng, self.parts)
                turns = [[system, {"role": "user", "content": statement}]]
                for number in range(1, _draw(rng, self.turns)):
                    own = words(rng, _draw(rng, self.answer))
                    text = common[number - 1] if number < parts else own
                    turns.append([{"role": "user", "content": text}])
                made.append((f"task-{task}-attempt-{attempt}", turns))
        return [made[number] for number in rng.permutation(len(made))]


def write_sessions(path: Path, sessions: Sequence[tuple[str, list[list[Message]]]]) -> None:
    """JSON Lines for `bench/replay_chat.py`; the replies in it only mark the turns."""
    with path.open("w") as file:
        for name, turns in sessions:
            messages = [m for turn in turns for m in (*turn, {"role": "assistant", "content": "."})]
            file.write(json.dumps({"id": name, "messages": messages}) + "\n")


def write_agentic_trace(
    path: Path, sessions: Sequence[tuple[str, list[list[Message]]]], source: str
) -> None:
    """The JSON of ``sglang.bench_serving --dataset-name agentic-trace``.

    Its ``prompt_tokens`` are left out: they are for information only, and only the server
    knows them.
    """
    conversations = [[{"messages": turn} for turn in turns] for _, turns in sessions]
    metadata = {"source": source, "conversations": [name for name, _ in sessions]}
    path.write_text(json.dumps({"metadata": metadata, "conversations": conversations}))


def write_short_chats(path: Path, count: int, length: Between, seed: int) -> None:
    """ShareGPT JSON of chats of one turn that share nothing; lengths in bytes, log-uniform."""
    rng = np.random.default_rng(seed)
    chats = []
    for number in range(count):
        size = int(np.exp(rng.uniform(*np.log(length))))
        turns = [{"from": "human", "value": words(rng, size)}, {"from": "gpt", "value": "."}]
        chats.append({"id": str(number), "conversations": turns})
    path.write_text(json.dumps(chats))


@dataclass(frozen=True)
class Mooncake:
    """How a segment of a mooncake trace is made to fit a model.

    Attributes:
        every: of the blocks of a prompt one in so many is kept, and the last. Blocks are
            named by all that comes before them, so that prompts go on sharing what they shared.
        max_blocks: requests that keep more are left out.
        max_output: of a request, in tokens.
    """

    every: int
    max_blocks: int
    max_output: int

    def segment(self, records: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict]:
        """``count`` requests that follow each other; those of another seed come later.

        Raises:
            ValueError: the trace has too few requests that fit, or they all come at once.
        """
        fitting = [made for record in records if (made := self._record(record)) is not None]
        if len(fitting) < count:
            raise ValueError(f"{len(fitting)} requests of the trace fit; {count} are needed")
        start = seed * count % (len(fitting) - count + 1)
        segment = fitting[start : start + count]
        if not trace_seconds(segment):
            raise ValueError(f"{count} requests of the trace come at once; more are needed")
        return segment

    def _record(self, record: dict[str, Any]) -> dict[str, Any] | None:
        ids = record["hash_ids"]
        kept = [*ids[:-1][:: self.every], *ids[-1:]]
        if len(kept) > self.max_blocks:
            return None
        output = max(1, min(self.max_output, record["output_length"]))
        return {**record, "hash_ids": kept, "output_length": output}


def read_mooncake(path: Path) -> list[dict[str, Any]]:
    """The requests of a mooncake trace, plain or gzipped.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is none.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        records = [json.loads(line) for line in file if line.strip()]
    if not all({"timestamp", "hash_ids", "output_length"} <= set(record) for record in records):
        raise ValueError(f"{path} is no mooncake trace: timestamp, hash_ids, output_length")
    return records


def trace_seconds(records: Sequence[dict[str, Any]]) -> float:
    """From the first to the last arrival of a mooncake segment."""
    times = [record["timestamp"] for record in records]
    return (max(times) - min(times)) / 1000


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def words(rng: np.random.Generator, size: int) -> str:
    """``size`` bytes of made-up words."""
    text = rng.integers(ord("a"), ord("z") + 1, size, dtype=np.uint8)
    text[1:][rng.random(size - 1) < _SPACES] = ord(" ")
    return text.tobytes().decode()


def _draw(rng: np.random.Generator, bounds: Between) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))

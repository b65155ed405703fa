"""Traces of text: OpenAI messages, ShareGPT, trajectories of SWE-agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sglang_hybrid.sim.trace import Trace, TraceBuilder
from sglang_hybrid.sim.traces.conversations import (
    Message,
    TurnEncoder,
    add_conversation,
    message_of,
)
from sglang_hybrid.sim.traces.memory import REQUEST_BYTES, TOKEN_BYTES
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import Entry, Source, TraceError, member

Conversation = tuple[str, list[Message]]


def read_messages(source: Source, options: ReadOptions) -> Trace:
    """`{"id" or "instance_id", "messages": [{"role", "content", "created"?}]}`."""
    return _read(source, options, _openai)


def read_sharegpt(source: Source, options: ReadOptions) -> Trace:
    """`{"id", "conversations": [{"from", "value"}]}`."""
    return _read(source, options, _sharegpt)


def read_swe_agent(source: Source, options: ReadOptions) -> Trace:
    """`{"history": [messages]}`, one trajectory a file."""
    return _read(source, options, _swe_agent)


def _openai(entry: Entry) -> Conversation:
    messages = [message_of(message) for message in member(entry.value, "messages", list)]
    return _name(entry, "id", "instance_id"), messages


def _sharegpt(entry: Entry) -> Conversation:
    said = member(entry.value, "conversations", list)
    return _name(entry, "id"), [message_of(message, "from", "value") for message in said]


def _swe_agent(entry: Entry) -> Conversation:
    messages = []
    for value in member(entry.value, "history", list):
        # Demonstrations are a message of the trajectory, not turns that the model took.
        if isinstance(value, dict) and value.get("is_demo") and value.get("role") == "assistant":
            value = {**value, "role": "user"}
        messages.append(message_of(value))
    return Path(entry.file).name.split(".traj")[0], messages


def _name(entry: Entry, *keys: str) -> str:
    value: Any = entry.value
    found = [str(value[key]) for key in keys if isinstance(value.get(key), str | int)]
    return found[0] if found else f"{entry.file}:{entry.place}"


def _read(source: Source, options: ReadOptions, parse: Callable[[Entry], Conversation]) -> Trace:
    encoder = TurnEncoder(options.tokenizer, options.rendering)
    builder = TraceBuilder(source.name)
    used: Counter[str] = Counter()
    for entry in source:
        try:
            name, messages = parse(entry)
            used[name] += 1
            session = name if used[name] == 1 else f"{name}#{used[name]}"
            count = len(builder)
            added = add_conversation(builder, session, messages, encoder)
            size = REQUEST_BYTES * (len(builder) - count) + TOKEN_BYTES * added
            source.memory.keep(size, f"{entry.file}:{entry.place}")
        except TraceError:
            raise
        except (ValueError, RecursionError) as error:
            source.reject(entry, error)
    builder.assumptions += [
        "One request is made of each reply, its prompt being all messages before it.",
        f"Messages are rendered {encoder.rendering.description}.",
        f"Lengths are in {options.tokenizer.description}, counted message by message.",
    ]
    return _from_zero(builder.build()) if len(builder) else builder.build()


def _from_zero(trace: Trace) -> Trace:
    """Times from the first; none at all unless every request has one."""
    if np.isfinite(trace.arrival).all():
        said = "A request arrives when its reply was recorded."
        return replace(
            trace,
            arrival=trace.arrival - trace.arrival.min(),
            assumptions=(*trace.assumptions, said),
        )
    return replace(trace, arrival=np.full(len(trace), np.nan))

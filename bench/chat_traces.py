"""Conversations from chat traces, as the requests that an agent would send.

Two shapes are read, plain or gzipped: JSON Lines with OpenAI messages
(`{"id" or "instance_id", "messages": [...]}`), and ShareGPT
(`{"conversations": [{"from", "value"}]}`), as a JSON list or as JSON Lines.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One request: what is said since the previous reply, and the reply of the trace."""

    messages: tuple[Message, ...]
    recorded_reply: Message


@dataclass(frozen=True)
class Conversation:
    """The requests of one conversation, in order."""

    name: str
    turns: tuple[Turn, ...]


@dataclass
class Trace:
    """What was read, and what could not be: each problem names file, line and reason."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_trace(path: Path, limit: int | None = None, tools: str = "text") -> Trace:
    """The first `limit` conversations that have a request, with the problems up to there.

    Args:
        path: the trace; gzipped if its name ends in `.gz`.
        tools: `"text"` renders tool calls into the content and gives tool results the
            role `user`, for chat templates that know three roles only; `"native"` sends
            them as they are.

    Raises:
        OSError: the file cannot be read.
    """
    trace = Trace()
    for place, entry in _entries(path):
        if limit is not None and len(trace.conversations) >= limit:
            break
        try:
            if isinstance(entry, ValueError):
                raise entry
            conversation = _conversation(entry, str(place), tools)
        except ValueError as error:
            trace.problems.append(f"{path.name}, {place}: {error}")
            continue
        if conversation.turns:
            trace.conversations.append(conversation)
        else:
            trace.problems.append(f"{path.name}, {place}: no assistant message after a user's")
    return trace


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Every entry with its place; a ValueError stands for one that is not JSON."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        file.seek(0)
        if start == "[":
            yield from _list_entries(file.read())
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    entry = json.loads(line)
                except ValueError as error:
                    entry = ValueError(f"not JSON ({error})")
                yield f"line {number}", entry


def _list_entries(text: str) -> Iterator[tuple[str, Any]]:
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        yield f"line {error.lineno}", ValueError(f"not JSON ({error.msg})")
        return
    for number, entry in enumerate(entries, 1):
        yield f"entry {number}", entry


def _conversation(entry: Any, place: str, tools: str) -> Conversation:
    """Raises ValueError if `entry` is not a conversation."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {type(entry).__name__}")
    if isinstance(entry.get("messages"), list):
        messages = [_message(message, "role", "content", tools) for message in entry["messages"]]
    elif isinstance(entry.get("conversations"), list):
        messages = [_message(message, "from", "value", tools) for message in entry["conversations"]]
    else:
        raise ValueError('neither a list "messages" nor a list "conversations"')
    name = entry.get("id", entry.get("instance_id", place))
    return Conversation(str(name), tuple(_turns(messages)))


def _turns(messages: list[Message]) -> Iterator[Turn]:
    """One turn per assistant message; those before any user's message open the history."""
    pending: list[Message] = []
    asked = False
    for message in messages:
        asked = asked or message["role"] in ("user", "tool")
        if message["role"] == "assistant" and asked:
            yield Turn(tuple(pending), message)
            pending = []
        else:
            pending.append(message)


def _message(message: Any, role_key: str, text_key: str, tools: str) -> Message:
    """An OpenAI message; raises ValueError if `message` is none."""
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}, not an object")
    role = _ROLES.get(str(message.get(role_key)))
    if role is None:
        raise ValueError(f"unknown {role_key} {message.get(role_key)!r} of a message")
    text = _text(message.get(text_key))
    calls = message.get("tool_calls") or []
    if tools == "native":
        kept = {key: message[key] for key in ("tool_call_id", "name") if key in message}
        return {"role": role, "content": text, **kept, **({"tool_calls": calls} if calls else {})}
    text = "\n".join([*([text] if text else []), *map(_call_text, calls)])
    return {"role": "user" if role == "tool" else role, "content": text}


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise ValueError(f"content is {type(content).__name__}, not text")


def _call_text(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, dict) else {}
    if not isinstance(function, dict) or "name" not in function:
        raise ValueError("a tool call has no function name")
    arguments = function.get("arguments", "")
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f"<tool_call>{function['name']}({arguments})</tool_call>"

"""The formats, and how their entries are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.traces import claude_code, mooncake, native, server_record, text_formats
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import Source, TraceError, quoted

_PEEKED = 20
_SHOWN_KEYS = 8


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        read: the reader.
        keys: what an entry of this format has.
        text: conversations; several files make one trace, times may have to be made up.
        arrival: model of session starts unless the caller chose one.
        gap: the same for the time between turns.
        cuts_sessions: a prompt over the limit ends its session; else the reader sees to it.
    """

    read: Callable[[Source, ReadOptions], Trace]
    keys: tuple[str, ...]
    text: bool = False
    arrival: str | None = None
    gap: str | None = None
    cuts_sessions: bool = True


FORMATS = {
    native.FORMAT: Format(native.read_native, ("format", "tokens_per_symbol")),
    "mooncake": Format(mooncake.read_mooncake, ("hash_ids", "input_length")),
    "server-record": Format(server_record.read_server_record, ("hashes", "page")),
    "claude-code": Format(
        claude_code.read_claude_code,
        ("requests", "block_size"),
        arrival="concurrent:10",
        gap="recorded:1800",
        cuts_sessions=False,
    ),
    "swe-agent": Format(text_formats.read_swe_agent, ("history",), text=True),
    "sharegpt": Format(text_formats.read_sharegpt, ("conversations",), text=True),
    "messages": Format(text_formats.read_messages, ("messages",), text=True),
}
AUTO = "auto"


def find_format(source: Source, name: str) -> Format:
    """The format ``name``, or what the first entries look like.

    Raises:
        ValueError: an unknown name.
        TraceError: no entry is of a known format.
    """
    if name != AUTO:
        if name not in FORMATS:
            raise ValueError(f"format {name!r} is not known; allowed: {AUTO}, {', '.join(FORMATS)}")
        if not source.peek(1):
            raise _unreadable(source)
        return FORMATS[name]
    entries = source.peek(_PEEKED)
    for entry in entries:
        for known in FORMATS.values():
            if isinstance(entry.value, dict) and all(key in entry.value for key in known.keys):
                return known
    if not entries:
        raise _unreadable(source)
    raise TraceError(
        f"{source.name}: the format is not known: the first entry is {_seen(entries[0].value)}; "
        f"allowed: {_allowed()}"
    )


def _unreadable(source: Source) -> TraceError:
    problems = source.report.problems
    seen = f"there is no JSON in it ({problems[0]})" if problems else "the file is empty"
    return TraceError(f"{source.name}: {seen}; allowed: {_allowed()}")


def _seen(value: Any) -> str:
    if not isinstance(value, dict):
        return f"of type {type(value).__name__}"
    if not value:
        return "an empty object"
    keys = [quoted(key) for key in list(value)[:_SHOWN_KEYS]]
    more = "" if len(value) <= _SHOWN_KEYS else ", ..."
    return f"an object with {', '.join(keys)}{more}"


def _allowed() -> str:
    return ", ".join(
        f"{name} (objects with {' and '.join(known.keys)})" for name, known in FORMATS.items()
    )

"""Sessions of coding agents: block hashes that are local to a session.

A line is `{"id", "block_size", "tool_tokens", "system_tokens", "requests": [...]}` with
requests `{"t": s, "in", "out", "hash_runs": [[start, count], ...]}`. Entries of
`"type": "subagent"` have requests of their own, with `t` relative to the entry's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from sglang_hybrid.sim.trace import IntArray, Trace, TraceBuilder
from sglang_hybrid.sim.traces.blocks import (
    CONTINUED,
    UNIQUE,
    BlockRequest,
    ChainedBuilder,
    full_sequences,
    granularity,
    renumbered,
)
from sglang_hybrid.sim.traces.memory import CHAINED_BYTES, REQUEST_BYTES, Memory
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import (
    Entry,
    Source,
    TraceError,
    member,
    quoted,
    seconds,
    tokens,
)

MAX_INPUT_TOKENS = 131_072
"""Default limit; sessions with longer prompts are left out."""


@dataclass(frozen=True)
class _Session:
    name: str
    block_tokens: int
    tools_and_system: tuple[int, int]
    requests: list[BlockRequest]

    @property
    def system_tokens(self) -> int:
        return sum(self.tools_and_system)


@dataclass
class _Left:
    """How many sessions were left out on purpose."""

    duplicates: int = 0
    long: int = 0


def read_claude_code(source: Source, options: ReadOptions) -> Trace:
    """Session after session; times are relative to the start of each.

    Raises:
        TraceError: blocks of different sizes.
    """
    limit = MAX_INPUT_TOKENS if options.max_input_tokens is None else options.max_input_tokens
    left = _Left()
    numbers: _Numbers | None = None
    for entry, session in _sessions(source, limit, left):
        if numbers is None:
            numbers = _Numbers(ChainedBuilder(TraceBuilder(source.name, session.block_tokens)))
        symbols = numbers.symbols
        width = numbers.chained.builder.tokens_per_symbol
        if session.block_tokens != width:
            raise TraceError(
                f"{entry.file}:{entry.place}: blocks of {session.block_tokens} tokens after "
                f"blocks of {width}; a trace has one block size"
            )
        try:
            numbers.add(session, options.outputs)
            blocks = numbers.symbols - symbols
            size = REQUEST_BYTES * len(session.requests) + CHAINED_BYTES * blocks
            source.memory.keep(size, f"{entry.file}:{entry.place}")
        except TraceError:
            raise
        except ValueError as error:
            source.reject(entry, error)
    if numbers is None:
        return TraceBuilder(source.name).build()
    builder = numbers.chained.builder
    builder.assumptions += [
        granularity(builder.tokens_per_symbol),
        CONTINUED if options.outputs == "continued" else UNIQUE,
        "Sessions share their tools and system prompt if the lengths of both are equal.",
        f"{left.duplicates} exact duplicates of sessions were left out.",
    ]
    if limit:
        builder.assumptions.append(
            f"{left.long} sessions with prompts of more than {limit} tokens were left out."
        )
    return builder.build()


def _sessions(source: Source, limit: int, left: _Left) -> Iterator[tuple[Entry, _Session]]:
    seen: set[bytes] = set()
    for entry in source:
        try:
            session = _session(entry, source.memory)
            content = _digest(session, entry.value["requests"])
        except TraceError:
            raise
        except (ValueError, RecursionError) as error:
            source.reject(entry, error)
            continue
        source.memory.keep(REQUEST_BYTES, f"{entry.file}:{entry.place}")
        if content in seen:
            left.duplicates += 1
            continue
        seen.add(content)
        if limit and max(request.input_len for request in session.requests) > limit:
            left.long += 1
            continue
        yield entry, session


def _digest(session: _Session, requests: list[Any]) -> bytes:
    try:
        content = orjson.dumps([session.tools_and_system, requests])
    except orjson.JSONEncodeError as error:
        raise ValueError(f"it cannot be compared with others: {error}") from None
    return hashlib.blake2b(content, digest_size=16).digest()


def _session(entry: Entry, memory: Memory) -> _Session:
    block_tokens = tokens(entry.value, "block_size", 1)
    tools = tokens(entry.value, "tool_tokens", 0)
    system = tokens(entry.value, "system_tokens", 0)
    values = member(entry.value, "requests", list)
    room = _Room(memory, entry, block_tokens)
    room.take(tools + system)
    requests = sorted(_requests(values, 0.0, room), key=lambda request: request.time)
    if not requests:
        raise ValueError("a session without requests")
    name = entry.value.get("id", f"{entry.file}:{entry.place}")
    if not isinstance(name, str | int):
        raise ValueError(f'"id" is {quoted(name)}; allowed: a string or an integer')
    return _Session(str(name), block_tokens, (tools, system), requests)


class _Room:
    """What the requests of one session need: each has its blocks, shared or not."""

    def __init__(self, memory: Memory, entry: Entry, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._memory, self._needed = memory, 0
        self._place = f"{entry.file}:{entry.place}"

    def take(self, tokens: int) -> None:
        self._needed += REQUEST_BYTES + CHAINED_BYTES * -(-tokens // self.block_tokens)
        self._memory.need(self._needed, self._place)


def _requests(values: list[Any], start: float, room: _Room) -> Iterator[BlockRequest]:
    block_tokens = room.block_tokens
    for value in values:
        time = start + seconds(value, "t")
        if value.get("type") == "subagent":
            yield from _requests(member(value, "requests", list), time, room)
            continue
        input_len = tokens(value, "in", 1)
        output_len = tokens(value, "out", 0)
        room.take(input_len + output_len)
        blocks = _blocks(member(value, "hash_runs", list), input_len // block_tokens)
        yield BlockRequest(time, input_len, output_len, blocks)


def _blocks(runs: list[Any], expected: int) -> IntArray:
    parts = []
    for run in runs:
        if not (isinstance(run, list) and len(run) == 2 and all(type(n) is int for n in run)):
            raise ValueError('"hash_runs" holds something else than [start, count]')
        start, count = run
        if not (0 <= start < 2**62 and 0 <= count <= expected):
            raise ValueError(f"run {run} does not fit a prompt of {expected} full blocks")
        parts.append(np.arange(start, start + count, dtype=np.int64))
    if sum(map(len, parts)) != expected:
        raise ValueError(f"{sum(map(len, parts))} blocks; {expected} full ones are needed")
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _lead(blocks: IntArray) -> int:
    """Length of the first run: where it breaks off, sessions vary their system prompt."""
    breaks = np.flatnonzero(np.diff(blocks) != 1)
    return int(breaks[0]) + 1 if len(breaks) else len(blocks)


class _Numbers:
    """Makes the ids of sessions global: all distinct, but for shared system prompts."""

    def __init__(self, chained: ChainedBuilder) -> None:
        self.chained = chained
        self._free = 0
        self._system: dict[tuple[int, int], IntArray] = {}
        self._names: dict[str, int] = {}

    @property
    def symbols(self) -> int:
        """Symbols in use."""
        return self._free

    def add(self, session: _Session, outputs: str) -> None:
        """Add the requests of ``session``."""
        width = session.block_tokens
        shared = _lead(session.requests[0].blocks[: session.system_tokens // width])
        requests = renumbered(session.requests)
        sequences, count = full_sequences(requests, width, outputs)
        lead = requests[0].blocks[:shared]
        numbers = np.arange(self._free, self._free + count)
        self._free += count
        numbers[lead] = self._system_numbers(session.tools_and_system, width)[:shared]
        name = self._unique(session.name)
        for request, sequence in zip(requests, sequences, strict=True):
            has_system = shared > 0 and np.array_equal(request.blocks[:1], lead[:1])
            self.chained.add(
                numbers[sequence],
                request.input_len,
                request.output_len,
                session=name,
                arrival=request.time,
                system_len=min(session.system_tokens, request.input_len) if has_system else None,
            )

    def _system_numbers(self, pair: tuple[int, int], width: int) -> IntArray:
        if pair not in self._system:
            blocks = sum(pair) // width
            self._system[pair] = np.arange(self._free, self._free + blocks)
            self._free += blocks
        return self._system[pair]

    def _unique(self, name: str) -> str:
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"

"""The format of this project: JSON Lines of requests, stored as differences.

The first line is `{"format": "hybrid-marconi-trace", "version": 1, "name",
"tokens_per_symbol"}`, then one request a line, in the order of arrival: `symbols`,
`input_len`, `output_len`, and optionally `session`, `t`, `system_len`, `parent`, `keep`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sglang_hybrid.sim.trace import Trace, TraceBuilder
from sglang_hybrid.sim.traces.memory import REQUEST_BYTES, TOKEN_BYTES
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import (
    MAX_TOKENS,
    Entry,
    Source,
    TraceError,
    member,
    optional,
    quoted,
    seconds,
    tokens,
)

FORMAT = "hybrid-marconi-trace"
VERSION = 1
_LONGEST_NAME = 200


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write ``trace``, compressed if the name ends in `.gz`."""
    path = Path(path)
    # Equal traces give equal files: no time or name goes into the header of gzip.
    with open(path, "wb") as raw:
        if path.suffix != ".gz":
            raw.writelines(_lines(trace))
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            packed.writelines(_lines(trace))


def _lines(trace: Trace) -> Iterator[bytes]:
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": trace.name,
        "tokens_per_symbol": trace.tokens_per_symbol,
    }
    if trace.assumptions:
        header["assumptions"] = list(trace.assumptions)
    yield orjson.dumps(header) + b"\n"
    names = trace.session_names
    for request in range(len(trace)):
        line: dict[str, Any] = {}
        session = int(trace.session[request])
        if session >= 0:
            line["session"] = names[session] if session < len(names) else str(session)
        if np.isfinite(trace.arrival[request]):
            line["t"] = float(trace.arrival[request])
        if trace.parent[request] >= 0:
            line["parent"] = int(trace.parent[request])
            line["keep"] = int(trace.keep[request])
        own = trace.symbols[trace.offsets[request] : trace.offsets[request + 1]]
        line["symbols"] = np.ascontiguousarray(own)
        line["input_len"] = int(trace.input_len[request])
        line["output_len"] = int(trace.output_len[request])
        if trace.system_len[request] >= 0:
            line["system_len"] = int(trace.system_len[request])
        yield orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def read_native(source: Source, options: ReadOptions) -> Trace:
    """The trace as it was written.

    Raises:
        TraceError: the first line is no header that this version knows.
    """
    entries = iter(source)
    header = next(entries)
    builder = _header(header)
    numbers: dict[int, int] = {}  # request in the file to request in the trace
    before = None
    for entry in entries:
        try:
            arrival = None
            if optional(entry.value, "t", int, float) is not None:
                arrival = seconds(entry.value, "t")
            if arrival is not None and before is not None and arrival < before:
                raise ValueError(f"t {arrival} comes after {before}; requests go by arrival")
            request = _add(builder, entry, numbers, arrival)
            numbers[entry.number - header.number - 1] = request
            size = REQUEST_BYTES + TOKEN_BYTES * len(entry.value["symbols"])
            source.memory.keep(size, f"{entry.file}:{entry.place}")
            before = before if arrival is None else arrival
        except TraceError:
            raise
        except (ValueError, OverflowError) as error:
            source.reject(entry, error)
    return builder.build()


def _header(entry: Entry) -> TraceBuilder:
    try:
        name = member(entry.value, "name", str)
        width = member(entry.value, "tokens_per_symbol", int)
        version = member(entry.value, "version", int)
        assumptions = optional(entry.value, "assumptions", list) or []
        if entry.value.get("format") != FORMAT or version != VERSION:
            raise ValueError(
                f"format {quoted(entry.value.get('format'))} version {version} is not known; "
                f"allowed: {FORMAT!r} version {VERSION}"
            )
        if len(name) > _LONGEST_NAME:
            raise ValueError(f'"name" has {len(name)} characters; allowed: up to {_LONGEST_NAME}')
        if not 1 <= width <= MAX_TOKENS:
            raise ValueError(f'"tokens_per_symbol" is {width}; allowed: 1 to {MAX_TOKENS}')
        if not all(isinstance(text, str) for text in assumptions):
            raise ValueError('"assumptions" holds something else than strings')
    except ValueError as error:
        raise TraceError(f"{entry.file}:{entry.place}: {error}") from None
    return TraceBuilder(name, width, assumptions)


def _add(
    builder: TraceBuilder, entry: Entry, numbers: dict[int, int], arrival: float | None
) -> int:
    line = entry.value
    parent = optional(line, "parent", int)
    if parent is not None and parent >= 0 and parent not in numbers:
        raise ValueError(f"parent {parent} is not among the requests read before")
    symbols = member(line, "symbols", list)
    # numpy would take 1.5, "1" and true for integers.
    if not set(map(type, symbols)) <= {int}:
        raise ValueError('"symbols" holds something else than integers')
    return builder.add_difference(
        symbols,
        tokens(line, "input_len", 1),
        tokens(line, "output_len", 0),
        parent=-1 if parent is None else numbers.get(parent, -1),
        keep=optional(line, "keep", int) or 0,
        session=optional(line, "session", str),
        arrival=arrival,
        system_len=optional(line, "system_len", int),
    )

"""Records of a running server: chained hashes of pages, in namespaces.

A line is `{"ns", "t", "page", "hashes": [...], "input_len", "output_len", "system_len"}`.
A hash stands for a page and everything before it in its namespace (`ns`). Pages beyond
the hashes, and the last partial one, are the request's own. `ns`, `t` (seconds) and
`system_len` (tokens up to the end of the system message) are optional.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sglang_hybrid.sim.trace import IntArray, Trace, TraceBuilder
from sglang_hybrid.sim.traces.blocks import ChainedBuilder, granularity
from sglang_hybrid.sim.traces.memory import CHAINED_BYTES, REQUEST_BYTES
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import (
    Entry,
    Source,
    TraceError,
    member,
    optional,
    seconds,
    tokens,
)

_HASH_BYTES = 250
"""Of a page that can occur again: its hash, and its entry in the table of symbols."""


class _Symbols:
    """Numbers for pages: the same for the same hash in a namespace, else new ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, Any], int] = {}
        self._free = 0

    def of(self, record: _Record, pages: int) -> IntArray:
        """Those of a sequence of ``pages`` pages, int64[pages]."""
        known, hashed = self._known, []
        for value in record.hashes:
            key = (record.namespace, value)
            if key not in known:
                known[key] = self._free
                self._free += 1
            hashed.append(known[key])
        first, self._free = self._free, self._free + pages - len(hashed)
        own = np.arange(first, self._free, dtype=np.int64)
        return np.concatenate((np.array(hashed, dtype=np.int64), own))


@dataclass(frozen=True)
class _Record:
    time: float | None
    input_len: int
    output_len: int
    system_len: int | None
    namespace: str | int | None
    hashes: list[str | int]


def read_server_record(source: Source, options: ReadOptions) -> Trace:
    """Requests in the order of the file.

    Raises:
        TraceError: pages of different sizes.
    """
    chained: ChainedBuilder | None = None
    symbols = _Symbols()
    page = 0
    for entry in source:
        try:
            record, its_page = _record(entry)
            if chained is None:
                page = its_page
                chained = ChainedBuilder(TraceBuilder(source.name, page))
            elif its_page != page:
                raise TraceError(
                    f"{entry.file}:{entry.place}: pages of {its_page} tokens after pages of "
                    f"{page}; a trace has one page size, so split the record"
                )
            pages = -(-(record.input_len + record.output_len) // page)
            size = REQUEST_BYTES + CHAINED_BYTES * pages + _HASH_BYTES * len(record.hashes)
            source.memory.keep(size, f"{entry.file}:{entry.place}")
            chained.add(
                symbols.of(record, pages),
                record.input_len,
                record.output_len,
                arrival=record.time,
                system_len=record.system_len,
            )
        except TraceError:
            raise
        except ValueError as error:
            source.reject(entry, error)
    if chained is None:
        return TraceBuilder(source.name).build()
    chained.builder.assumptions += [
        granularity(page),
        "Tokens beyond the recorded pages are the request's own.",
    ]
    return _from_zero(chained.builder.build())


def _record(entry: Entry) -> tuple[_Record, int]:
    page = tokens(entry.value, "page", 1)
    input_len = tokens(entry.value, "input_len", 1)
    output_len = tokens(entry.value, "output_len", 0)
    hashes = member(entry.value, "hashes", list)
    namespace = entry.value.get("ns")
    if not all(isinstance(value, str | int) for value in hashes):
        raise ValueError('"hashes" holds something else than strings and integers')
    if not (namespace is None or isinstance(namespace, str | int)):
        raise ValueError('"ns" is not allowed; allowed: a string, an integer or null')
    pages = (input_len + output_len) // page
    if len(hashes) > pages:
        raise ValueError(f"{len(hashes)} hashes for {pages} full pages of {page} tokens")
    system_len = None
    if entry.value.get("system_len") is not None:
        system_len = tokens(entry.value, "system_len", 0)
        if system_len > input_len:
            raise ValueError(f"system_len {system_len} is more than input_len {input_len}")
    time = None
    if optional(entry.value, "t", int, float) is not None:
        time = seconds(entry.value, "t")
    return _Record(time, input_len, output_len, system_len, namespace, hashes), page


def _from_zero(trace: Trace) -> Trace:
    if not np.isfinite(trace.arrival).any():
        return trace
    return replace(trace, arrival=trace.arrival - np.nanmin(trace.arrival))

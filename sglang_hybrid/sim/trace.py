"""A request trace in memory.

Tokens are grouped in *symbols* of `Trace.tokens_per_symbol` tokens (1 for real token
ids, 64 or 512 for traces of block hashes). Two tokens are the same if their symbols
and their offsets inside them are; the last symbol of a sequence may be partial.
Sequences are stored as differences: a request's full sequence (input, then output) is
the first `keep` symbols of its parent's full sequence, followed by symbols of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Requests in the order in which they arrive; index ``r`` is the logical clock.

    Attributes:
        name: for reports.
        tokens_per_symbol: granularity of what is known about the tokens.
        symbols: own symbols of all requests, one after another. int64.
        offsets: request ``r`` owns ``symbols[offsets[r]:offsets[r + 1]]``. int64[R + 1].
        parent: earlier request whose sequence is continued, or -1. int64[R].
        keep: symbols taken over from the parent's full sequence. int64[R].
        input_len: prompt tokens. int64[R].
        output_len: generated tokens. int64[R].
        arrival: seconds, NaN where unknown. float64[R].
        session: number of the session, -1 where unknown. int64[R].
        system_len: tokens up to the end of the system message, -1 where unknown. int64[R].
        assumptions: what the reader had to assume (rendering, arrival, gaps), for reports.
    """

    name: str
    tokens_per_symbol: int
    symbols: IntArray
    offsets: IntArray
    parent: IntArray
    keep: IntArray
    input_len: IntArray
    output_len: IntArray
    arrival: FloatArray
    session: IntArray
    system_len: IntArray
    assumptions: tuple[str, ...] = ()
    session_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_len)

    def sequence(self, request: int) -> IntArray:
        """The full sequence of ``request`` in symbols, input and output."""
        parts: list[IntArray] = []
        end = None  # symbols still wanted of `request`; None: all
        while True:
            keep = int(self.keep[request]) if self.parent[request] >= 0 else 0
            own = self.symbols[self.offsets[request] : self.offsets[request + 1]]
            if end is not None:
                own = own[: max(0, end - keep)]
            parts.append(own)
            if self.parent[request] < 0 or keep == 0:
                break
            end = keep if end is None else min(end, keep)
            request = int(self.parent[request])
        return np.concatenate(parts[::-1])

    def head(self, requests: int) -> Trace:
        """The first ``requests`` requests."""
        n = min(requests, len(self))
        return Trace(
            self.name,
            self.tokens_per_symbol,
            self.symbols[: self.offsets[n]],
            self.offsets[: n + 1],
            self.parent[:n],
            self.keep[:n],
            self.input_len[:n],
            self.output_len[:n],
            self.arrival[:n],
            self.session[:n],
            self.system_len[:n],
            self.assumptions,
            self.session_names,
        )


class NoRequestsError(ValueError):
    """A trace without requests."""


@dataclass
class TraceBuilder:
    """Collects requests and makes a `Trace`.

    `add` takes full sequences and stores only what is new since the last request of
    the same session; `add_difference` takes differences.
    """

    name: str
    tokens_per_symbol: int = 1
    assumptions: list[str] = field(default_factory=list)
    _own: list[IntArray] = field(default_factory=list)
    _parent: list[int] = field(default_factory=list)
    _keep: list[int] = field(default_factory=list)
    _input_len: list[int] = field(default_factory=list)
    _output_len: list[int] = field(default_factory=list)
    _arrival: list[float] = field(default_factory=list)
    _session: list[int] = field(default_factory=list)
    _system_len: list[int] = field(default_factory=list)
    _session_ids: dict[str, int] = field(default_factory=dict)
    _last_of_session: dict[str, tuple[int, IntArray]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._own)

    def add(
        self,
        symbols: Sequence[int] | IntArray,
        input_len: int,
        output_len: int,
        *,
        session: str | None = None,
        arrival: float | None = None,
        system_len: int | None = None,
    ) -> int:
        """Add a request by its full sequence; returns its index.

        Raises:
            ValueError: lengths that the symbols do not cover.
        """
        full = np.asarray(symbols, dtype=np.int64)
        parent, keep = -1, 0
        if session is not None and session in self._last_of_session:
            earlier, before = self._last_of_session[session]
            shared = common_prefix(before, full)
            if shared:
                parent, keep = earlier, shared
        index = self.add_difference(
            full[keep:],
            input_len,
            output_len,
            parent=parent,
            keep=keep,
            session=session,
            arrival=arrival,
            system_len=system_len,
        )
        if session is not None:
            self._last_of_session[session] = index, full
        return index

    def add_difference(
        self,
        symbols: Sequence[int] | IntArray,
        input_len: int,
        output_len: int,
        *,
        parent: int = -1,
        keep: int = 0,
        session: str | None = None,
        arrival: float | None = None,
        system_len: int | None = None,
    ) -> int:
        """Add a request by what follows the first ``keep`` symbols of ``parent``."""
        own = np.asarray(symbols, dtype=np.int64)
        index = len(self._own)
        if input_len < 1 or output_len < 0:
            raise ValueError(
                f"request {index}: input_len {input_len} and output_len {output_len} are not "
                "allowed; allowed: input_len >= 1, output_len >= 0"
            )
        if not -1 <= parent < index:
            raise ValueError(
                f"request {index}: parent {parent} is not allowed; allowed: an earlier request"
            )
        if keep < 0 or (parent < 0 and keep):
            raise ValueError(f"request {index}: keep {keep} is not allowed with parent {parent}")
        width = self.tokens_per_symbol
        needed = -(-(input_len + output_len) // width)
        if keep + len(own) != needed:
            raise ValueError(
                f"request {index}: {keep + len(own)} symbols of {width} tokens do not fit "
                f"input_len {input_len} + output_len {output_len}; {needed} are needed"
            )
        if parent >= 0 and keep > self._symbols_of(parent):
            raise ValueError(
                f"request {index}: keep {keep} is more than the {self._symbols_of(parent)} "
                f"symbols of parent {parent}"
            )
        if system_len is not None and not 0 <= system_len <= input_len:
            raise ValueError(
                f"request {index}: system_len {system_len} does not lie in 0..input_len"
            )
        self._own.append(own)
        self._parent.append(parent)
        self._keep.append(keep)
        self._input_len.append(input_len)
        self._output_len.append(output_len)
        self._arrival.append(np.nan if arrival is None else float(arrival))
        self._system_len.append(-1 if system_len is None else system_len)
        if session is None:
            self._session.append(-1)
        else:
            self._session.append(self._session_ids.setdefault(session, len(self._session_ids)))
        return index

    def _symbols_of(self, request: int) -> int:
        tokens = self._input_len[request] + self._output_len[request]
        return -(-tokens // self.tokens_per_symbol)

    def build(self) -> Trace:
        """The trace of all requests so far.

        Raises:
            NoRequestsError: there are none.
        """
        if not self._own:
            raise NoRequestsError(f"trace {self.name!r} has no requests")
        lengths = np.array([len(own) for own in self._own], dtype=np.int64)
        return Trace(
            self.name,
            self.tokens_per_symbol,
            np.concatenate(self._own),
            np.concatenate(([0], np.cumsum(lengths))),
            parent=_integers(self._parent),
            keep=_integers(self._keep),
            input_len=_integers(self._input_len),
            output_len=_integers(self._output_len),
            arrival=np.array(self._arrival, dtype=np.float64),
            session=_integers(self._session),
            system_len=_integers(self._system_len),
            assumptions=tuple(self.assumptions),
            session_names=tuple(self._session_ids),
        )


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def common_prefix(a: IntArray, b: IntArray) -> int:
    """How many symbols two sequences begin with alike."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n

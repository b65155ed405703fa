"""Windows of request records: what the server tells the shadow caches. No token ids.

A record takes 48 bytes and 8 per page of 64 tokens, in memory and in a message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.pages import PAGE_TOKENS, Hashes
from sglang_hybrid.sim.trace import IntArray

VERSION = 1

_MAGIC = b"SHWN"
# Magic, version, tokens per page, requests, pages, first; CRC-32 of all else; padding.
_HEADER = struct.Struct("<4sHHIQqI8x")
_BEFORE_CRC = 28
_LARGEST = 2**31 - 1
"""Tokens of a sequence; also the bound of what a message may announce."""

_COLUMNS = ("input_len", "output_len", "system_len", "hit")


class DamagedWindowError(ValueError):
    """Bytes that are no window."""


@dataclass(frozen=True)
class Window:
    """Consecutive requests in the order in which they were admitted. W requests, P pages.

    Attributes:
        first: operation count (request clock) at the first request.
        input_len, output_len: tokens, int64[W].
        system_len: tokens up to the end of the system message, -1 where unknown, int64[W].
        hit: tokens of the prompt that the server really reused, int64[W].
        namespace: hash of what separates requests (salt, adapter), uint64[W].
        offsets: request i has ``pages[offsets[i]:offsets[i + 1]]``, int64[W + 1].
        pages: chained hashes of the full pages of prompt and output, uint64[P]: a hash
            stands for its page and everything before it in its namespace. What lies
            beyond a request's pages is its own.
        page: tokens per page.
    """

    first: int
    input_len: IntArray
    output_len: IntArray
    system_len: IntArray
    hit: IntArray
    namespace: Hashes
    offsets: IntArray
    pages: Hashes
    page: int = PAGE_TOKENS

    def __post_init__(self) -> None:
        requests = len(self.input_len)
        if not 1 <= self.page < 2**16:
            raise ValueError(f"page = {self.page} is not allowed; allowed: 1 to {2**16 - 1} tokens")
        lengths = {name: len(getattr(self, name)) for name in (*_COLUMNS, "namespace")}
        if set(lengths.values()) != {requests} or len(self.offsets) != requests + 1:
            raise ValueError(f"the columns of a window differ in length: {lengths}")
        counts = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.pages) or (counts < 0).any():
            raise ValueError("offsets are not allowed; allowed: rising from 0 to all pages")
        total = self.input_len + self.output_len
        self._check("input_len", (self.input_len < 1) | (self.input_len > _LARGEST), "1 to 2^31-1")
        self._check("output_len", (self.output_len < 0) | (total > _LARGEST), "0 to 2^31-1 in all")
        outside = (self.system_len < -1) | (self.system_len > self.input_len)
        self._check("system_len", outside, "-1 to input_len")
        self._check("hit", (self.hit < 0) | (self.hit > self.input_len), "0 to input_len")
        if (counts * self.page > total).any():
            worst = int(np.argmax(counts * self.page - total))
            raise ValueError(
                f"request {worst} of a window: {counts[worst]} pages of {self.page} tokens for "
                f"{total[worst]} tokens"
            )

    def _check(self, name: str, is_wrong: NDArray[np.bool_], allowed: str) -> None:
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            raise ValueError(
                f"request {at} of a window: {name} = {getattr(self, name)[at]} is not allowed; "
                f"allowed: {allowed}"
            )

    def __len__(self) -> int:
        return len(self.input_len)

    def part(self, start: int, stop: int) -> Window:
        """Requests ``start`` to ``stop``, not included; no copy."""
        low, high = self.offsets[start], self.offsets[stop]
        return Window(
            self.first + start,
            self.input_len[start:stop],
            self.output_len[start:stop],
            self.system_len[start:stop],
            self.hit[start:stop],
            self.namespace[start:stop],
            self.offsets[start : stop + 1] - low,
            self.pages[low:high],
            self.page,
        )

    @classmethod
    def joined(cls, windows: Sequence[Window]) -> Window:
        """One window of one or more, which have the same page size."""

        def column(name: str) -> Any:
            return np.concatenate([getattr(window, name) for window in windows])

        starts = np.cumsum([0, *(len(window.pages) for window in windows)])
        parts = [w.offsets[:-1] + at for w, at in zip(windows, starts[:-1], strict=True)]
        return cls(
            windows[0].first,
            column("input_len"),
            column("output_len"),
            column("system_len"),
            column("hit"),
            column("namespace"),
            np.concatenate([*parts, starts[-1:]]),
            column("pages"),
            windows[0].page,
        )

    def to_bytes(self) -> bytes:
        """The window as a message: a header, then the columns."""
        columns = [np.ascontiguousarray(getattr(self, name), np.int64) for name in _COLUMNS]
        columns.append(np.ascontiguousarray(self.offsets, np.int64))
        hashes = [np.ascontiguousarray(a, np.uint64) for a in (self.namespace, self.pages)]
        body = b"".join(array.tobytes() for array in (*columns, *hashes))
        fields = (_MAGIC, VERSION, self.page, len(self), len(self.pages), self.first)
        crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)[:_BEFORE_CRC]))
        return _HEADER.pack(*fields, crc) + body

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Window:
        """What `to_bytes` made; the arrays are read-only views of ``data``.

        Raises:
            DamagedWindowError: says what is wrong.
        """
        view = memoryview(data)
        if len(view) < _HEADER.size:
            raise DamagedWindowError(f"a window of {len(view)} bytes has no header")
        magic, version, page, requests, pages, first, crc = _HEADER.unpack(view[: _HEADER.size])
        if magic != _MAGIC:
            raise DamagedWindowError(f"a window begins with {magic!r} instead of {_MAGIC!r}")
        if version != VERSION:
            raise DamagedWindowError(f"a window of version {version}; known is {VERSION}")
        body = view[_HEADER.size :]
        expected = 8 * (6 * requests + 1 + pages)
        if len(body) != expected:
            raise DamagedWindowError(
                f"a window of {requests} requests and {pages} pages has {len(body)} bytes "
                f"instead of {expected}"
            )
        if zlib.crc32(body, zlib.crc32(view[:_BEFORE_CRC])) != crc:
            raise DamagedWindowError("a window's checksum is wrong")
        at = [0, *(requests * i for i in range(1, 5)), 5 * requests + 1]
        numbers = np.frombuffer(body[: 8 * at[-1]], np.int64)
        input_len, output_len, system_len, hit, offsets = (
            numbers[start:stop] for start, stop in pairwise(at)
        )
        hashes = np.frombuffer(body[8 * at[-1] :], np.uint64)
        namespace, own = hashes[:requests], hashes[requests:]
        try:
            return cls(first, input_len, output_len, system_len, hit, namespace, offsets, own, page)
        except ValueError as error:
            raise DamagedWindowError(str(error)) from None


@dataclass
class WindowBuilder:
    """Collects the records of a window.

    Attributes:
        page: tokens per page.
        first: operation count at the first request of the window under way.
    """

    page: int = PAGE_TOKENS
    first: int = 0
    _numbers: list[tuple[int, int, int, int]] = field(default_factory=list)
    _namespaces: list[int] = field(default_factory=list)
    _pages: list[Hashes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._numbers)

    def add(
        self,
        input_len: int,
        output_len: int,
        pages: Hashes,
        *,
        system_len: int = -1,
        hit: int = 0,
        namespace: int = 0,
    ) -> None:
        """Add a request; its fields are those of `Window`, which checks them."""
        self._numbers.append((input_len, output_len, system_len, hit))
        self._namespaces.append(namespace)
        self._pages.append(np.asarray(pages, np.uint64))

    def take(self) -> Window:
        """The window of all records so far; the next one begins empty.

        Raises:
            ValueError: a record that cannot be; all of them are dropped.
        """
        try:
            return self.peek()
        finally:
            self.first += len(self)
            self._numbers, self._namespaces, self._pages = [], [], []

    def peek(self) -> Window:
        """The window of all records so far, which goes on.

        Raises:
            ValueError: a record that cannot be.
        """
        numbers = np.array(self._numbers, np.int64).reshape(-1, 4)
        input_len, output_len, system_len, hit = np.ascontiguousarray(numbers.T)
        return Window(
            self.first,
            input_len,
            output_len,
            system_len,
            hit,
            np.array(self._namespaces, np.uint64),
            np.cumsum([0, *(len(own) for own in self._pages)], dtype=np.int64),
            np.concatenate([np.empty(0, np.uint64), *self._pages]),
            self.page,
        )

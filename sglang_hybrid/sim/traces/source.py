"""What is read: files, compressed or not, as a stream of JSON entries with their places."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, cast

import orjson

from sglang_hybrid.sim.traces.memory import REQUEST_BYTES, Memory
from sglang_hybrid.sim.traces.memory import TraceError as TraceError

_MAGIC_BYTES = 6
_ZSTD_BYTES = 1 << 12
"""Compressed bytes at a time; a block of a few bytes can stand for 128 KiB."""
_SHOWN_CHARS, _REASON_CHARS = 60, 300
MAX_TOKENS = 1 << 24
"""Prompts and outputs beyond this are taken for errors of the file."""

_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Problem:
    """An entry that was left out: where it stands and why."""

    file: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.place}: {self.reason}"


@dataclass
class TraceReport:
    """What became of the entries of a trace."""

    entries: int = 0
    problems: list[Problem] = field(default_factory=list)

    def summary(self) -> str:
        """One sentence about what was left out; empty if nothing was."""
        if not self.problems:
            return ""
        return (
            f"{len(self.problems)} of {self.entries} entries were left out as malformed, "
            f"the first being {self.problems[0]}."
        )


@dataclass(frozen=True)
class Entry:
    """One JSON value.

    Attributes:
        file: name of the file.
        place: its line, or its number in a JSON list.
        number: how many entries the file has before it, malformed ones included.
    """

    file: str
    place: str
    number: int
    value: Any


class Source:
    """The entries of some files, once; what cannot be used goes to the report.

    With ``strict`` the first problem ends the reading with a `TraceError`; whatever does
    not fit ``memory`` always does.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        report: TraceReport,
        strict: bool,
        memory: Memory | None = None,
    ) -> None:
        self.memory = Memory() if memory is None else memory
        self.paths = tuple(paths)
        self.name = self.paths[0].name
        self.report = report
        self._strict = strict
        self._stream = chain.from_iterable(self._entries(path) for path in self.paths)

    def __iter__(self) -> Iterator[Entry]:
        return self._stream

    def peek(self, count: int) -> list[Entry]:
        """The first entries, up to ``count``; they are not used up."""
        first = list(islice(self._stream, count))
        self._stream = chain(first, self._stream)
        return first

    def reject(self, entry: Entry, reason: object) -> None:
        """Report that ``entry`` is left out."""
        if isinstance(reason, RecursionError):
            reason = "it is nested too deeply"
        self._problem(Problem(entry.file, entry.place, shortened(str(reason), _REASON_CHARS)))

    def _problem(self, problem: Problem) -> None:
        if self._strict:
            raise TraceError(str(problem))
        self.memory.keep(REQUEST_BYTES, f"{problem.file}:{problem.place}")
        self.report.problems.append(problem)

    def _entries(self, path: Path) -> Iterator[Entry]:
        line = 0
        try:
            with open_file(path) as file:
                values = _values(file, self.memory.document_bytes)
                for number, (line, value) in enumerate(values):
                    unit = "" if line > 0 else "entry "
                    place = f"{unit}{abs(line)}"
                    self.report.entries += 1
                    if isinstance(value, orjson.JSONDecodeError):
                        self._problem(Problem(path.name, place, f"not JSON: {value.msg}"))
                    else:
                        yield Entry(path.name, place, number, value)
        except _TooLongError:
            raise self.memory.refuse_document(f"{path.name}:{abs(line) + 1}") from None
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except _DAMAGED as error:
            self.report.entries += 1
            reason = f"the file is damaged from here on: {error}"
            self._problem(Problem(path.name, str(abs(line) + 1), reason))


def open_file(path: Path) -> IO[bytes]:
    """Open for reading, decompressing what its first bytes call for.

    Raises:
        TraceError: the package for the compression is missing.
    """
    with open(path, "rb") as file:
        magic = file.read(_MAGIC_BYTES)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic.startswith(b"BZh"):
        return bz2.open(path, "rb")
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(path, "rb")
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _open_zstd(path)
    return open(path, "rb")


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise TraceError(
            f"{path.name} is compressed with zstd; install the package zstandard to read it"
        ) from None
    return io.BufferedReader(_ZstdFile(path, zstandard.ZstdDecompressor()))


class _ZstdFile(io.RawIOBase):
    """A zstd file as the standard library expects it; one that is cut is an error."""

    def __init__(self, path: Path, decompressor: Any) -> None:
        self._file = path.open("rb")
        self._decompressor = decompressor
        self._frame = decompressor.decompressobj()
        self._compressed = b""
        self._unpacked = memoryview(b"")  # what is left of it is no copy

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            self._compressed = self._compressed or self._file.read(_ZSTD_BYTES)
            if not self._compressed:
                if self._frame.eof:
                    return 0
                raise OSError("it ends inside a frame")
            self._unpack()
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def _unpack(self) -> None:
        if self._frame.eof:
            self._frame = self._decompressor.decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(self._compressed))
        except Exception as error:  # the package's own type is known only where it is installed
            raise OSError(str(error)) from None
        self._compressed = self._frame.unused_data if self._frame.eof else b""

    def close(self) -> None:
        self._file.close()
        super().close()


class _TooLongError(Exception):
    """A document that is longer than allowed; what comes before it has been read."""


def _lines(file: IO[bytes], most: int, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines of ``file`` with their numbers, from ``first``; none longer than ``most``."""
    for number in count(first):
        line = file.readline(most + 1)
        if not line:
            return
        if len(line) > most:
            raise _TooLongError
        yield number, line


def _rest(file: IO[bytes], most: int) -> bytes:
    rest = file.read(most + 1)
    if len(rest) > most:
        raise _TooLongError
    return rest


def _values(file: IO[bytes], most: int) -> Iterator[tuple[int, Any]]:
    """Values with their lines (positive) or their numbers in a list (negative).

    An error of the JSON parser stands for a value that is not JSON. No more than ``most``
    bytes are taken for one value.

    Raises:
        _TooLongError: a value has more.
    """
    line, first = 0, b""
    for line, first in _lines(file, most, 1):  # noqa: B007
        if first.strip():
            break
    if not first.strip():
        return
    first = first.removeprefix(codecs.BOM_UTF8)  # as Windows likes to write it
    value = _parse(first)
    if isinstance(value, orjson.JSONDecodeError | list):
        # Not JSON Lines: one document over several lines, or a list of entries.
        rest = _rest(file, most)
        whole = isinstance(value, list) and not rest.strip()
        document = value if whole else _parse(first + rest)
        if isinstance(document, list):
            yield from ((-number, item) for number, item in enumerate(document, 1))
            return
        if not isinstance(document, orjson.JSONDecodeError):
            yield line, document
            return
        if first.lstrip().startswith(b"[") and not isinstance(value, list):
            yield line + document.lineno - 1, document
            return
        file = io.BytesIO(rest)
    yield line, value
    for number, text in _lines(file, most, line + 1):
        if text.strip():
            yield number, _parse(text)


def _parse(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error


def member(value: Any, key: str, *kinds: type) -> Any:
    """``value[key]`` if it is of one of ``kinds``.

    Raises:
        ValueError: it is not, or ``value`` is no object.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {_kind(value)}")
    if key not in value:
        raise ValueError(f'"{key}" is missing')
    found = value[key]
    if isinstance(found, bool) or not isinstance(found, kinds):
        allowed = " or ".join(_NAMES.get(kind, kind.__name__) for kind in kinds)
        raise ValueError(f'"{key}" is {_kind(found)}; allowed: {allowed}')
    return found


def tokens(value: Any, key: str, least: int) -> int:
    """``value[key]`` if it is a number of tokens that a request can have.

    Raises:
        ValueError: it is not.
    """
    found: int = member(value, key, int)
    if not least <= found <= MAX_TOKENS:
        raise ValueError(f'"{key}" is {found}; allowed: {least} to {MAX_TOKENS} tokens')
    return found


def optional(value: Any, key: str, *kinds: type) -> Any:
    """Like `member`; None if the key is missing or null."""
    if isinstance(value, dict) and value.get(key) is None:
        return None
    return member(value, key, *kinds)


_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)


def quoted(value: Any) -> str:
    """``value`` of a file as it stands in a message."""
    try:
        return shortened(repr(value), _SHOWN_CHARS)
    except RecursionError:
        return _kind(value)


def shortened(text: str, most: int = _SHOWN_CHARS) -> str:
    """``text`` on one line that a terminal shows as it is."""
    if len(text) > most:
        text = f"{text[: most - 3]}..."
    return text if text.isprintable() else ascii(text)[1:-1]


_LONGEST_SECONDS = 1e18


def seconds(value: Any, key: str, per_second: float = 1) -> float:
    """``value[key]``, counted so many ``per_second``, as seconds.

    Raises:
        ValueError: it is no number, or one that is no time.
    """
    found: float = member(value, key, int, float) / per_second
    if not abs(found) <= _LONGEST_SECONDS:
        raise ValueError(f'"{key}" is {value[key]}; allowed: up to {_LONGEST_SECONDS:g} seconds')
    return found

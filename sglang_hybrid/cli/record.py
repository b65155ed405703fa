"""`hybrid-marconi record`: the requests that a running server remembers, as a trace.

The server keeps lengths and hashes of pages of its latest requests, never tokens. They
are salted anew for every file, so that two files cannot be matched with each other.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_hybrid.adapter.record_export import PART_KEY, REQUEST_KEY
from sglang_hybrid.cli.server import Server, ServerError
from sglang_hybrid.cli.status import shown

_POLL_S = 0.5
_WITHIN_S = 120.0
"""Writing and compressing the record takes the server seconds at most."""

_MOST_PARTS, _MOST_BYTES = 4096, 1 << 32
"""Of one record. A million requests of a million pages have about 200 MB of text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `record`."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:30000", help="of the server, without a path")
    add("--api-key", help="sent as a bearer token")
    add("--admin-api-key", help="of a server that has one (default: that of --api-key)")
    add(
        "--out",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSONL to write, for `hybrid-marconi replay`; with several DP ranks one file each, "
        "FILE.dp0.jsonl and so on",
    )
    add("--force", action="store_true", help="overwrite files that exist")
    add("--timeout", type=float, default=60.0, help="seconds for one answer")


def run(args: argparse.Namespace) -> int:
    """Write the files; 0 if all were written, 2 if not."""
    server = Server(args.url, args.api_key, args.timeout, args.admin_api_key)
    try:
        ranks = len(server.caches())
        paths = paths_of(args.out, ranks)
        _check(paths, args.force)
        records = fetch(server)
        if len(records) != len(paths):
            raise ServerError("the number of DP ranks changed meanwhile; try again")
        for path, (text, requests) in zip(paths, records, strict=True):
            path.write_text(text, encoding="utf-8")
            print(f"{path}: {requests} requests")
    except (ServerError, OSError) as error:
        print(f"hybrid-marconi record: {error}", file=sys.stderr)
        return 2
    return 0


def paths_of(out: Path, ranks: int) -> list[Path]:
    """One file per DP rank: each has a cache of its own, and is replayed by itself."""
    if ranks == 1:
        return [out]
    return [out.with_name(f"{out.stem}.dp{rank}{out.suffix or '.jsonl'}") for rank in range(ranks)]


def _check(paths: list[Path], is_forced: bool) -> None:
    for path in paths:
        if not path.parent.is_dir():
            raise ServerError(f"--out: {path.parent} is no folder; make it, or give another")
        if path.exists() and not is_forced:
            raise ServerError(f"--out: {path} exists; give another name, or --force")


def fetch(server: Server) -> list[tuple[str, int]]:
    """Text and number of requests of every DP rank.

    Raises:
        ServerError: the server keeps no record, or another client asked for it meanwhile.
    """
    with _export(server):
        first = _part(server, 1)
        _check_sizes(first)
        pieces = [[part] for part in first]
        for index in range(2, max(part["parts"] for part in first) + 1):
            for rank, part in enumerate(_part(server, index)):
                if rank < len(first) and index <= first[rank]["parts"]:
                    if part.get("export") != first[rank].get("export"):
                        raise ServerError("another client took a record meanwhile; try again")
                    pieces[rank].append(part)
    return [(_text(rank), rank[0]["requests"]) for rank in pieces]


def _check_sizes(first: list[dict[str, Any]]) -> None:
    """Before anything is asked for by these numbers."""
    for part in first:
        for key, least, most in (("parts", 1, _MOST_PARTS), ("requests", 0, 2**31)):
            value = part.get(key)
            if type(value) is not int or not least <= value <= most:
                raise ServerError(
                    f'the server\'s record has "{key}" {shown(value)}; allowed: an integer from '
                    f"{least} to {most}; is it of another version?"
                )


@contextlib.contextmanager
def _export(server: Server) -> Iterator[None]:
    if not all(server.set_state(**{REQUEST_KEY: 0})):
        raise ServerError(
            f"{server.url} keeps no record of requests; start it with a record_requests above 0 "
            "in --cache-config"
        )
    try:
        yield
    finally:
        with contextlib.suppress(ServerError):  # the server keeps it until the next one
            server.set_state(**{REQUEST_KEY: 0})


def _part(server: Server, index: int) -> list[dict[str, Any]]:
    """Part ``index`` of every rank; for ranks with fewer parts, their answer to that."""
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        if not all(server.set_state(**{REQUEST_KEY: index})):
            raise ServerError("another client took a record meanwhile; try again")
        parts = [status.get(PART_KEY) for status in server.caches()]
        # Another client's request may have been given our part; then it is asked for again.
        if all(parts):
            found = [part for part in parts if isinstance(part, dict)]
            if len(found) != len(parts):
                raise ServerError("the server's record is no object; is it of another version?")
            if index == 1 and (error := next((p["error"] for p in found if "error" in p), None)):
                raise ServerError(f"the server could not write its record: {shown(error, 200)}")
            if all("data" in part or "error" in part for part in found):
                return found
        time.sleep(_POLL_S)
    raise ServerError(f"the server did not hand out its record within {_WITHIN_S:.0f} s")


def _text(parts: list[dict[str, Any]]) -> str:
    unpacker = zlib.decompressobj()
    try:
        data = b"".join(base64.b64decode(part["data"]) for part in parts)
        text = unpacker.decompress(data, _MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise ServerError(
                f"the record has more than {_MOST_BYTES} bytes; start the server with a smaller "
                "record_requests"
            )
        if not unpacker.eof:
            raise ValueError("it is cut")
        return text.decode()
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        reason = shown(f"{type(error).__name__}: {error}", 200)
        raise ServerError(f"the record arrived damaged ({reason}); try again") from None

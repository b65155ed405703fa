"""``python -m sglang_hybrid.shadow.export``: a window on stdin, a salted trace on stdout.

A process of its own, because hashing a full record takes seconds of Python, for which the
server's threads would have to wait.
"""

from __future__ import annotations

import io
import os
import secrets
import sys
import zlib

from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.ring import Ring

_SALT_BYTES = 32


def export(window: Window) -> bytes:
    """The requests of ``window`` as JSONL that `hybrid-marconi replay` reads, by zlib."""
    ring = Ring(len(window))  # a single window may exceed the limit of pages
    ring.append(window)
    file = io.StringIO()
    ring.to_jsonl(file, secrets.token_bytes(_SALT_BYTES))
    return zlib.compress(file.getvalue().encode())


def main() -> None:
    """Read, write, end."""
    os.nice(19)  # whatever the server does comes first
    sys.stdout.buffer.write(export(Window.from_bytes(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()

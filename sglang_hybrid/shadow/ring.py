"""The last requests of a server, within bounds."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from typing import TextIO

from sglang_hybrid.shadow.records import Window

MAX_REQUESTS = 4096
MAX_PAGES = 2**20


class Ring:
    """Holds the newest records; older ones go when new ones need their room.

    A record takes 48 bytes and 8 per page: 8.6 MB at the default limits. Windows should
    hold many requests each, as each costs about a kilobyte.

    Args:
        max_requests, max_pages: neither is exceeded, except by a single window.

    Raises:
        ValueError: a limit below 1.
    """

    def __init__(self, max_requests: int = MAX_REQUESTS, max_pages: int = MAX_PAGES) -> None:
        for name, value in (("max_requests", max_requests), ("max_pages", max_pages)):
            if value < 1:
                raise ValueError(f"{name} = {value} is not allowed; allowed: an integer from 1")
        self.max_requests, self.max_pages = max_requests, max_pages
        self.clear()

    def __len__(self) -> int:
        return self._requests

    @property
    def num_pages(self) -> int:
        """Pages of all requests held."""
        return self._pages

    def clear(self) -> None:
        """Forget all records."""
        self._windows: deque[Window] = deque()
        self._requests = self._pages = 0

    def append(self, window: Window) -> int:
        """Add a window; returns how many of the oldest requests went for it.

        Raises:
            ValueError: its pages are of another size than those held.
        """
        if self._windows and window.page != self._windows[0].page:
            raise ValueError(
                f"a window with pages of {window.page} tokens after pages of "
                f"{self._windows[0].page}; a ring has one page size"
            )
        dropped = 0
        while self._windows:
            excess = self._requests + len(window) - self.max_requests
            excess_pages = self._pages + len(window.pages) - self.max_pages
            if excess <= 0 and excess_pages <= 0:
                break
            oldest = self._windows.popleft()
            # As many of its requests as must go.
            of_pages = int((oldest.offsets < excess_pages).sum())
            going = min(len(oldest), max(excess, of_pages))
            self._requests -= going
            self._pages -= int(oldest.offsets[going])
            dropped += going
            if going < len(oldest):
                self._windows.appendleft(oldest.part(going, len(oldest)))
        if len(window):
            self._windows.append(window)
        self._requests += len(window)
        self._pages += len(window.pages)
        return dropped

    def window(self) -> Window | None:
        """All records in one window, None if there are none."""
        return Window.joined(self._windows) if self._windows else None

    def to_jsonl(self, file: TextIO, salt: bytes) -> int:
        """Write the records as a trace that `hybrid-marconi replay` reads; returns how many.

        Neither hashes nor namespaces can be told from another file's without its salt.

        Args:
            salt: 16 to 64 random bytes, made for this file.

        Raises:
            ValueError: a salt of another length.
        """
        if not 16 <= len(salt) <= 64:
            raise ValueError(f"a salt of {len(salt)} bytes is not allowed; allowed: 16 to 64")
        salted: dict[tuple[int, ...], str] = {}

        def hidden(*values: int) -> str:
            if values not in salted:
                data = b"".join(value.to_bytes(8, "little") for value in values)
                salted[values] = hashlib.blake2b(data, digest_size=8, key=salt).hexdigest()
            return salted[values]

        for window in list(self._windows):
            pages = window.pages.tolist()
            for i in range(len(window)):
                low, high = window.offsets[i : i + 2]
                namespace = int(window.namespace[i])
                record = {
                    "ns": hidden(namespace),
                    "page": window.page,
                    "hashes": [hidden(namespace, value) for value in pages[low:high]],
                    "input_len": int(window.input_len[i]),
                    "output_len": int(window.output_len[i]),
                }
                if window.system_len[i] >= 0:
                    record["system_len"] = int(window.system_len[i])
                file.write(json.dumps(record) + "\n")
        return self._requests

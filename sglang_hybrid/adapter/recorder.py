"""What is remembered of every request: lengths and hashes of pages, never tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_hybrid.adapter.wanted import WantedCheckpoints, chain_of
from sglang_hybrid.core.pages import Hashes
from sglang_hybrid.shadow.records import Window, WindowBuilder
from sglang_hybrid.shadow.ring import MAX_PAGES, Ring

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


_RECORD_BYTES, _PAGE_BYTES = 48, 8


class Recorder:
    """Collects records into windows, and keeps the latest in a bounded ring.

    A request is recorded when it finishes: what it asked and what it was answered is then
    known, and a conversation's next turn can only come later.

    Args:
        window: requests per window; fewer where they have more than `MAX_PAGES` pages.
        max_requests: requests that the ring holds, 0 for none.
    """

    def __init__(self, window: int, max_requests: int) -> None:
        self._size = window
        self._builder, self._pages = WindowBuilder(), 0
        self.ring = Ring(max_requests) if max_requests else None

    def clear(self) -> None:
        """Forget everything, as after a flush."""
        self._builder, self._pages = WindowBuilder(), 0
        if self.ring is not None:
            self.ring.clear()

    def add(self, req: Req, length: int, pages: Hashes, wanted: WantedCheckpoints) -> Window | None:
        """``req`` finished with ``length`` tokens; the window that it completes, if it does."""
        input_len = min(len(req.origin_input_ids), length)
        system_end = wanted.system_end_of(req)
        self._builder.add(
            input_len,
            length - input_len,
            pages,
            system_len=-1 if system_end is None or system_end > input_len else system_end,
            hit=min(getattr(req, "hybrid_hit", 0), input_len),
            namespace=chain_of(req).namespace,
        )
        self._pages += len(pages)
        if len(self._builder) < self._size and self._pages < MAX_PAGES:
            return None
        self._pages = 0
        window = self._builder.take()
        if self.ring is not None:
            self.ring.append(window)
        return window

    @property
    def size(self) -> tuple[int, int]:
        """Requests that the ring holds, and the bytes that they take."""
        if self.ring is None:
            return 0, 0
        return len(self.ring), _RECORD_BYTES * len(self.ring) + _PAGE_BYTES * self.ring.num_pages

    def window(self) -> Window | None:
        """All records held, the window under way included; None if there are none."""
        held = None if self.ring is None else self.ring.window()
        if self.ring is None or not len(self._builder):
            return held
        rest = self._builder.peek()
        return rest if held is None else Window.joined([held, rest])

"""Where earlier sequences ended: how far the conversation of a new prompt is."""

from __future__ import annotations

from collections import deque

from sglang_hybrid.core.pages import Hashes

MAX_ENDS = 1 << 18
"""Ends remembered; beyond it the oldest is forgotten. About a hundred bytes each."""


class KnownEnds:
    """Hashes of the last full pages of sequences, see `core.pages`.

    Args:
        capacity: how many are remembered.
    """

    def __init__(self, capacity: int = MAX_ENDS) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity!r}")
        self._capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all."""
        self._known: set[int] = set()
        self._oldest_first: deque[int] = deque()

    def observe(self, pages: Hashes) -> None:
        """A sequence with these full pages has ended."""
        if not len(pages):
            return
        end = int(pages[-1])
        if end in self._known:
            return
        if len(self._known) == self._capacity:
            self._known.remove(self._oldest_first.popleft())
        self._known.add(end)
        self._oldest_first.append(end)

    def turn(self, pages: Hashes) -> int:
        """min(2, known ends on a prompt with these full pages)."""
        known, turn = self._known, 0
        for page in reversed(pages.tolist()):
            turn += page in known
            if turn == 2:
                break
        return turn

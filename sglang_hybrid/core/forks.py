"""Forks ever seen: pages after which two different continuations are known.

A radix tree forgets a divergence when it evicts the KV of one side, and would have to see
it twice again before a checkpoint is made there. This index remembers it ("ghost fork")
as hashes of pages, without tokens, KV or states, in a table of fixed size.
"""

from __future__ import annotations

import numpy as np

from sglang_hybrid.core.pages import PAGE_TOKENS, Hashes

DEFAULT_SLOTS = 1 << 18
"""Pages remembered; 17 bytes each. 2^18 pages are 16.8 million tokens."""


class ForkIndex:
    """Direct-mapped table of pages: the hash, the next page's hash, whether a fork is known.

    A page whose place is taken by another is forgotten, so memory is bounded and every
    operation is a handful of vector operations, whatever was seen before.

    Args:
        slots: pages that it can remember, a power of two.
    """

    def __init__(self, slots: int = DEFAULT_SLOTS) -> None:
        if slots < 2 or slots & (slots - 1):
            raise ValueError(f"slots must be a power of two of at least 2, got {slots!r}")
        self._mask = np.uint64(slots - 1)
        self._page = np.zeros(slots, np.uint64)
        self._next = np.zeros(slots, np.uint64)
        self._is_fork = np.zeros(slots, np.bool_)

    @property
    def num_bytes(self) -> int:
        return self._page.nbytes + self._next.nbytes + self._is_fork.nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._page[:] = 0
        self._next[:] = 0
        self._is_fork[:] = False

    def observe(self, hashes: Hashes) -> None:
        """A sequence with these chained page hashes was seen (see `PageChain`).

        The last page tells nothing: a sequence that ends is no divergence, and neither
        is its last, partial page.
        """
        if len(hashes) < 2:
            return
        pages, following = hashes[:-1], hashes[1:]
        at = pages & self._mask
        known = self._page[at] == pages
        forks = known & (self._is_fork[at] | (self._next[at] != following))
        self._page[at] = pages
        self._next[at] = following
        self._is_fork[at] = forks

    def deepest(self, hashes: Hashes, nearest: int, farthest: int) -> int | None:
        """Depth in tokens of the deepest fork known on a sequence, None if there is none.

        Args:
            nearest, farthest: the least and the greatest depth that count, in tokens.
        """
        first = max(1, -(-nearest // PAGE_TOKENS))
        last = min(len(hashes), farthest // PAGE_TOKENS)
        if last < first:
            return None
        pages = hashes[first - 1 : last]
        at = pages & self._mask
        forks = np.flatnonzero((self._page[at] == pages) & self._is_fork[at])
        return (first + int(forks[-1])) * PAGE_TOKENS if len(forks) else None

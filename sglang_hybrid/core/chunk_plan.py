"""A plan of saved states with the chunk states and convolution windows that they start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_hybrid.core.track_plan import TrackPlan


@dataclass(kw_only=True)
class ChunkPlan(TrackPlan):
    """A `TrackPlan` for kernels that return states on a grid only.

    Attributes:
        chunk_tokens: grid of the chunk states that kernels return, from each row's start.
        window_tokens: inputs that a convolution state holds.
        chunks: the chunk state to go on from, an index into those of all rows.
        starts: flattened position of that chunk state.
        window_index: for a state whose convolution window reaches back behind its row's
            start, the entry of `window_rows`; else -1.
        window_rows: rows whose convolution state before the forward is needed.
    """

    chunk_tokens: int
    window_tokens: int
    chunks: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    window_index: list[int] = field(default_factory=list)
    window_rows: list[int] = field(default_factory=list)
    _next_chunk: int = 0

    def add_row(self, tokens: int, offsets: Sequence[int]) -> None:
        first = self._next_token
        super().add_row(tokens, offsets)
        chunks = -(-tokens // self.chunk_tokens)
        for offset in offsets:
            # The last chunk has no state after it, even where it is full.
            chunk = min(offset // self.chunk_tokens, chunks - 1)
            self.chunks.append(self._next_chunk + chunk)
            self.starts.append(first + chunk * self.chunk_tokens)
            self.window_index.append(self._window(offset))
        self._next_chunk += chunks

    def _window(self, offset: int) -> int:
        if offset >= self.window_tokens:
            return -1
        if self.window_rows[-1:] != [self._row]:
            self.window_rows.append(self._row)
        return len(self.window_rows) - 1

"""Which states one prefill forward saves, and where they lie in its tensors.

SGLang's own plan (`prefill_track_metadata.py`) has one state per request, on a grid.
Here a request may have several, at any token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sglang_hybrid.core.checkpoints import Kind

Place = tuple[int, Kind]
"""Depth in tokens, and what the checkpoint there will be."""


def on_page(depth: int, page_size: int) -> int:
    """The deepest page boundary up to ``depth``; the tree can name no other token."""
    return depth - depth % page_size


def places_in(
    wanted: Iterable[Place], start: int, end: int, page_size: int
) -> tuple[list[Place], int]:
    """The places of ``wanted`` that a prefill of tokens ``start`` to ``end`` passes.

    Returns:
        Places by rising depth, each depth once, behind ``start`` and up to ``end``; and
        how many wanted places were rounded down to a page. Of places that fall
        together, the one whose wanted depth comes first names the kind.
    """
    places: dict[int, Kind] = {}
    rounded = 0
    for depth, kind in sorted(wanted):
        place = on_page(depth, page_size)
        if start < place <= end:
            rounded += place != depth
            places.setdefault(place, kind)
    return sorted(places.items()), rounded


@dataclass
class TrackPlan:
    """The states that one forward saves inside its rows, as indices into its tensors.

    A row is one sequence's part of the forward; rows lie one after another in the
    flattened tokens. The lists have one entry per saved state.

    Attributes:
        chunk_tokens: grid of the chunk states that kernels return, from each row's start.
        window_tokens: inputs that a convolution state holds.
        rows: row of each state.
        ends: flattened position of each state: it is the one after all tokens before.
        chunks: the chunk state to go on from, an index into those of all rows.
        starts: flattened position of that chunk state.
        window_index: for a state whose convolution window reaches back behind its row's
            start, the entry of `window_rows`; else -1.
        window_rows: rows whose convolution state before the forward is needed.
    """

    chunk_tokens: int
    window_tokens: int
    rows: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    window_index: list[int] = field(default_factory=list)
    window_rows: list[int] = field(default_factory=list)
    _row: int = -1
    _next_token: int = 0
    _next_chunk: int = 0

    def add_row(self, tokens: int, offsets: Sequence[int]) -> None:
        """The next row has so many tokens; save its states after ``offsets`` of them.

        Raises:
            ValueError: an offset lies outside of the row.
        """
        self._row += 1
        chunks = -(-tokens // self.chunk_tokens)
        for offset in offsets:
            if not 0 < offset <= tokens:
                raise ValueError(f"no state after {offset} tokens of a row of {tokens}")
            # The last chunk has no state after it, even where it is full.
            chunk = min(offset // self.chunk_tokens, chunks - 1)
            self.rows.append(self._row)
            self.ends.append(self._next_token + offset)
            self.chunks.append(self._next_chunk + chunk)
            self.starts.append(self._next_token + chunk * self.chunk_tokens)
            self.window_index.append(self._window(offset))
        self._next_token += tokens
        self._next_chunk += chunks

    def turns(self) -> list[list[int]]:
        """Indices of the states: the first of every row, then the second of every row, ..."""
        turns: list[list[int]] = []
        seen: dict[int, int] = {}
        for index, row in enumerate(self.rows):
            turn = seen.get(row, 0)
            seen[row] = turn + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append(index)
        return turns

    def _window(self, offset: int) -> int:
        if offset >= self.window_tokens:
            return -1
        if self.window_rows[-1:] != [self._row]:
            self.window_rows.append(self._row)
        return len(self.window_rows) - 1

    def __len__(self) -> int:
        return len(self.rows)

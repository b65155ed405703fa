"""Which states one prefill forward saves, and where they lie in its tensors.

SGLang's own plan (`prefill_track_metadata.py`) has one state per request, on a grid.
Here a request may have several, at any token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def on_page(depth: int, page_size: int) -> int:
    """The deepest page boundary up to ``depth``; the tree can name no other token."""
    return depth - depth % page_size


@dataclass
class TrackPlan:
    """The states that one forward saves inside its rows, as indices into its tensors.

    A row is one sequence's part of the forward; rows lie one after another in the
    flattened tokens. The lists have one entry per saved state.

    Attributes:
        rows: row of each state.
        ends: flattened position of each state: it is the one after all tokens before.
    """

    rows: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    _row: int = -1
    _next_token: int = 0

    def add_row(self, tokens: int, offsets: Sequence[int]) -> None:
        """The next row has so many tokens; save its states after ``offsets`` of them.

        Raises:
            ValueError: an offset lies outside of the row.
        """
        self._row += 1
        for offset in offsets:
            if not 0 < offset <= tokens:
                raise ValueError(f"no state after {offset} tokens of a row of {tokens}")
            self.rows.append(self._row)
            self.ends.append(self._next_token + offset)
        self._next_token += tokens

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

    def __len__(self) -> int:
        return len(self.rows)

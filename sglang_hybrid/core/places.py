"""Wanted checkpoints as places of a prefill."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.track_plan import on_page

Place = tuple[int, Kind]
"""Depth in tokens, and what the checkpoint there will be."""


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

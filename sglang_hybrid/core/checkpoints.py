"""A checkpoint of the state layers.

The tree itself belongs to whoever holds the pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """Why a checkpoint was taken."""

    DECODE_END = 0
    BRANCH = 1
    PROMPT_END = 2
    CHUNK = 3
    SYSTEM_END = 4
    GHOST_FORK = 5  # a branch point whose KV has gone


@dataclass(slots=True)
class Checkpoint:
    """One live checkpoint.

    Attributes:
        depth: tokens from the root at which the state was taken.
        kind: why it was taken.
        prefill_flops: FLOPs to prefill ``depth`` tokens from nothing.
        last_use: clock of its last use (made, asked for again, or consumed).
        hits: times its state was consumed.
        is_first_victim: whether it goes before all that admission asked for.
        turn: 0, 1 or 2: how far the conversation of the request that took it was.
    """

    depth: int
    kind: Kind
    prefill_flops: float
    last_use: int
    hits: int = 0
    is_first_victim: bool = False
    turn: int = 0


BRANCHES = (Kind.BRANCH, Kind.GHOST_FORK, Kind.SYSTEM_END)
"""Kinds at which sequences diverge, or will."""

ENDS = (Kind.DECODE_END, Kind.PROMPT_END)
"""Kinds that are superseded once their conversation has moved on to a later checkpoint."""

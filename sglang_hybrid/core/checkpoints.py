"""A checkpoint of the state layers, and what its eviction would lose and free.

The tree itself belongs to whoever holds the pools (SGLang's radix cache, or the
simulator); this module turns facts read off a tree into what policies compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from sglang_hybrid.core.policies import LRU, Utility
from sglang_hybrid.core.victims import Candidates, VictimIndex, VictimTiers


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
        turn: 0, 1 or 2: how far the conversation of the request that took it was, see
            `core.ends`.
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


class StateTier(IntEnum):
    """Order in which state slots are given up."""

    FIRST = 0  # not asked for by admission: prompt ends and chunk boundaries, until used
    NORMAL = 1  # at most one live child
    FORK = 2  # two or more live children; only when nothing else is left


class KVTier(IntEnum):
    """Order in which leaves are given up for their KV."""

    STATELESS = 0  # cannot be hit; only evidence for branch points
    FIRST = 1
    NORMAL = 2


# A path of unasked-for checkpoints is thinned, not dropped: the one whose loss costs
# least goes first, and its neighbour then covers a wider gap and is worth more.
SPREAD = Utility(alpha=1.0)


# Tiers of each kind that the policy in force orders; the others are always the same.
STATE_TIERS_OF_POLICY = (StateTier.NORMAL, StateTier.FORK)
KV_TIERS_OF_POLICY = (KVTier.NORMAL,)


def state_victims(policy: Callable[[], Candidates], bucket_width: float) -> VictimTiers:
    """Index over checkpoints; ``policy`` makes the indexes that the policy in force orders."""
    return VictimTiers([VictimIndex(SPREAD, bucket_width), policy(), policy()])


def kv_victims(policy: Callable[[], Candidates], bucket_width: float) -> VictimTiers:
    """Index over leaves; ``policy`` as for `state_victims`."""
    return VictimTiers([VictimIndex(LRU(), 0.0), VictimIndex(SPREAD, bucket_width), policy()])

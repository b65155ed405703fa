"""In which order kinds of candidates are given up, for state slots and for KV."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from sglang_hybrid.core.policies import LRU, Utility
from sglang_hybrid.core.victims import Candidates, VictimIndex, VictimTiers


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

"""Eviction policies: which checkpoint is worth least.

A policy gives each candidate a *weight*, the logarithm of its worth, from facts
that change only by local events (what a hit would save, what eviction frees,
hits so far), and a *loss* that combines the weight with the time since the last
use. The victim is the candidate of lowest loss. For equal weights every loss falls
with age, which is what lets `VictimIndex` keep one least-recently-used order per
weight.

Time is a logical clock (requests admitted), never the wall clock: tensor-parallel
ranks must decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from sglang_hybrid.core.scores import (
    efficiency_gain,
    efficiency_weight,
    linear_recency,
    utility_loss,
    utility_weight,
)

MAX_ALPHA = 1e6
"""Beyond it only efficiency counts, and losses would leave the range of floats."""


def checked_alpha(alpha: float) -> float:
    """``alpha`` itself; raises ValueError outside 0..`MAX_ALPHA` (NaN included)."""
    if not 0 <= alpha <= MAX_ALPHA:
        raise ValueError(f"alpha must lie in 0..{MAX_ALPHA:g}, got {alpha!r}")
    return alpha


# A candidate inside `VictimIndex`: (last_use, depth, key, weight, bucket), where a sampled
# one has its class for a bucket. Comparing two of them compares age, then depth, then key:
# the order inside a bucket, and between candidates of equal loss.
Entry = tuple[int, int, int, float, float]


class Policy(Protocol):
    """The contract between a policy and `VictimIndex`."""

    name: str

    def weight(
        self, saved_flops: float, freed_bytes: float, hits: int = 0, superseded: bool = False
    ) -> float:
        """Logarithm of a candidate's worth, finite, whatever the time.

        Args:
            saved_flops: FLOPs that a hit saves relative to the nearest live
                checkpoint above (never relative to a dead parent).
            freed_bytes: bytes that evicting it really gives back: the state, and
                for a leaf its own KV segment too.
            hits: hits since the checkpoint was made.
            superseded: a decode-end or prompt-end checkpoint with exactly one
                resident child: its conversation moved on.
        """
        ...

    def losses(self, heads: Sequence[Entry], now: int) -> list[float]:
        """Loss of each candidate; ``now`` is later than every last use."""
        ...

    def pick(self, heads: Sequence[Entry], now: int) -> Entry:
        """The candidate of lowest loss; of equal losses the lowest `Entry`."""
        ...


class LRU:
    """Least recently used, whatever a checkpoint saves."""

    name = "lru"

    def weight(
        self, saved_flops: float, freed_bytes: float, hits: int = 0, superseded: bool = False
    ) -> float:
        return 0.0

    def losses(self, heads: Sequence[Entry], now: int) -> list[float]:
        return [float(head[0]) for head in heads]

    def pick(self, heads: Sequence[Entry], now: int) -> Entry:
        return min(heads)


class Utility:
    """Log utility ``alpha ln(FLOPs/byte) - ln(age) + ln(1 + hits)/2 + ln(0.1)[superseded]``.

    In log space there is no normalisation over a changing candidate set, so two
    candidates keep their order until one of them is used.
    """

    name = "utility"

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = checked_alpha(alpha)

    def weight(
        self, saved_flops: float, freed_bytes: float, hits: int = 0, superseded: bool = False
    ) -> float:
        return utility_weight(self.alpha, saved_flops, freed_bytes, hits, superseded)

    def losses(self, heads: Sequence[Entry], now: int) -> list[float]:
        return [utility_loss(head[3], now - head[0]) for head in heads]

    def pick(self, heads: Sequence[Entry], now: int) -> Entry:
        # Agrees with `losses`, in one pass: this runs for every victim.
        log, best, lowest = math.log, heads[0], math.inf
        for head in heads:
            loss = head[3] - log(now - head[0])
            if loss < lowest or (loss == lowest and head < best):
                best, lowest = head, loss
        return best


class Marconi:
    """The paper's score ``recency + alpha * FLOP efficiency``, both normalised to 0..1.

    Pan et al., "Marconi", MLSys 2025, section 4.2. Recency is linear in the age,
    scaled from the oldest candidate to the present; the reciprocal ``1/age`` of the
    published artifact makes nearly all candidates look equally cold. Efficiency is
    min-max normalised over the candidates. ``alpha = 0`` orders as `LRU`.
    """

    name = "marconi"

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = checked_alpha(alpha)

    def weight(
        self, saved_flops: float, freed_bytes: float, hits: int = 0, superseded: bool = False
    ) -> float:
        return efficiency_weight(saved_flops, freed_bytes)

    def losses(self, heads: Sequence[Entry], now: int) -> list[float]:
        oldest = min(head[0] for head in heads)
        efficiencies = [math.exp(head[3]) for head in heads]
        lowest = min(efficiencies)
        gain = efficiency_gain(self.alpha, lowest, max(efficiencies))
        return [
            linear_recency(head[0], oldest, now) + (efficiency - lowest) * gain
            for head, efficiency in zip(heads, efficiencies, strict=True)
        ]

    def pick(self, heads: Sequence[Entry], now: int) -> Entry:
        # Agrees with `losses`, in two passes: this runs for every victim.
        first = heads[0]
        oldest, low, high = first[0], first[3], first[3]
        for head in heads:
            if head[0] < oldest:
                oldest = head[0]
            if head[3] < low:
                low = head[3]
            elif head[3] > high:
                high = head[3]
        exp, best, lowest = math.exp, first, math.inf
        base = exp(low)
        span, age_span = exp(high) - base, now - oldest
        gain = self.alpha / span if span > 0 else 0.0
        for head in heads:
            loss = (head[0] - oldest) / age_span + (exp(head[3]) - base) * gain
            if loss < lowest or (loss == lowest and head < best):
                best, lowest = head, loss
        return best

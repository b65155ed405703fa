"""Scores as scalar functions.

They use nothing but arithmetic and `math`, so that they can be compiled as they are.
"""

from __future__ import annotations

import math

LN_SUPERSEDED = math.log(0.1)
"""A superseded checkpoint is worth a tenth of one at which its conversation ends."""


def utility_weight(
    alpha: float, saved_flops: float, freed_bytes: float, hits: int, superseded: bool
) -> float:
    """``alpha ln(FLOPs/byte) + ln(1 + hits)/2 + ln(0.1)[superseded]``."""
    weight = alpha * math.log(saved_flops / freed_bytes)
    if hits:
        weight += 0.5 * math.log1p(hits)
    return weight + LN_SUPERSEDED if superseded else weight


def utility_loss(weight: float, age: int) -> float:
    """Weight minus the logarithm of the age, in requests (at least 1)."""
    return weight - math.log(age)


def efficiency_weight(saved_flops: float, freed_bytes: float) -> float:
    """Logarithm of the paper's FLOP efficiency (section 4.2), FLOPs saved per byte freed."""
    return math.log(saved_flops / freed_bytes)


def efficiency_gain(alpha: float, lowest: float, highest: float) -> float:
    """Factor of an efficiency above the ``lowest`` one, so that it spans 0..alpha."""
    span = highest - lowest
    return alpha / span if span > 0 else 0.0


def linear_recency(last_use: int, oldest: int, now: int) -> float:
    """0 for the oldest candidate, 1 for the present."""
    return (last_use - oldest) / (now - oldest)

"""Recency plus alpha times FLOP efficiency, both normalised over the candidates.

Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025, section 4.2.
Recency is linear in the age, as in the server (`core.scores`), or 1/age, the
"hyperbolic" form of the published artifact, which is nearly flat.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sglang_hybrid.core import scores
from sglang_hybrid.sim.engine.cache import HEADS, HYPERBOLIC, LINEAR, SEGLEN
from sglang_hybrid.sim.jit import compiled_with, internal

efficiency_gain = compiled_with(scores.efficiency_gain)
linear_recency = compiled_with(scores.linear_recency)


class Spans(NamedTuple):
    """What the compared candidates span, for policies that normalise over them."""

    oldest: int
    newest: int
    low_weight: float
    high_weight: float
    lowest: float  # efficiency
    gain: float


@internal
def spans(c, count, now, policy):
    """Extremes over the ``count`` candidates in `heads`; zeros where none are needed."""
    oldest = newest = np.int64(0)
    low = high = lowest = gain = 0.0
    if policy not in (LINEAR, HYPERBOLIC, SEGLEN):
        return Spans(oldest, newest, low, high, lowest, gain)
    oldest = newest = np.int64(c.nodes[c.lists[HEADS, 0]].last_use)
    low = high = c.nodes[c.lists[HEADS, 0]].weight
    for i in range(1, count):
        node = c.nodes[c.lists[HEADS, i]]
        last_use = np.int64(node.last_use)
        oldest, newest = min(oldest, last_use), max(newest, last_use)
        low, high = min(low, node.weight), max(high, node.weight)
    if policy != SEGLEN:
        lowest = math.exp(low)
        gain = efficiency_gain(c.rules[0].alpha, lowest, math.exp(high))
    return Spans(oldest, newest, low, high, lowest, gain)


@internal
def linear_loss(weight, last_use, now, spans):
    efficiency = math.exp(weight) - spans.lowest
    return linear_recency(last_use, spans.oldest, now) + efficiency * spans.gain


@internal
def hyperbolic_loss(weight, last_use, now, spans):
    coldest, warmest = 1 / (now - spans.oldest), 1 / (now - spans.newest)
    recency = 0.0
    if warmest > coldest:
        recency = (1 / (now - last_use) - coldest) / (warmest - coldest)
    return recency + (math.exp(weight) - spans.lowest) * spans.gain


@internal
def pair_losses(alpha, policy, weight_a, last_use_a, weight_b, last_use_b, now):
    """Losses of exactly two candidates."""
    low, high = min(weight_a, weight_b), max(weight_a, weight_b)
    lowest = math.exp(low)
    gain = efficiency_gain(alpha, lowest, math.exp(high))
    oldest, newest = min(last_use_a, last_use_b), max(last_use_a, last_use_b)
    spans = Spans(np.int64(oldest), np.int64(newest), low, high, lowest, gain)
    if policy == LINEAR:
        return (
            linear_loss(weight_a, last_use_a, now, spans),
            linear_loss(weight_b, last_use_b, now, spans),
        )
    return (
        hyperbolic_loss(weight_a, last_use_a, now, spans),
        hyperbolic_loss(weight_b, last_use_b, now, spans),
    )

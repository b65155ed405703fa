"""LRU that spares states whose loss would mean a long recomputation.

After Zhang et al., "Tail-Optimized Caching for LLM Inference" (T-LRU, 2025): what can go while the
recomputation of its conversation stays within a threshold of tokens goes first.
"""

from __future__ import annotations

from sglang_hybrid.sim.jit import internal

_SPARED = 2.0**40  # beyond any clock


@internal
def loss(replay, last_use, threshold):
    return last_use + (0.0 if replay <= threshold else _SPARED)

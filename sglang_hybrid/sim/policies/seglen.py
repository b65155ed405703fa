"""Length of the segment that a state saves, and recency.

The replay-length score proposed for SGLang in pull request 22172: tokens since the
nearest live state above, and last use, each normalised, weighted 0.85 to 0.15.
"""

from __future__ import annotations

from sglang_hybrid.sim.jit import internal


@internal
def loss(length, last_use, spans, share):
    by_length = by_age = 0.0
    if spans.high_weight > spans.low_weight:
        by_length = (length - spans.low_weight) / (spans.high_weight - spans.low_weight)
    if spans.newest > spans.oldest:
        by_age = (last_use - spans.oldest) / (spans.newest - spans.oldest)
    return share * by_length + (1 - share) * by_age

"""Greedy dual-size frequency.

Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
Policy", HP Labs 1998: value = inflation + hits x cost / size, with the inflation, the
value of the last victim, at the time of the last touch. The cost of a miss is its FLOPs
(`gdsf`) or one (`gdsf-1`).
"""

from __future__ import annotations

from sglang_hybrid.sim.jit import internal


@internal
def loss(base, weight):
    return base + weight

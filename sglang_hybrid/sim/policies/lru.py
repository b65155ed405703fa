"""Least recently used.

"SGLang+" of the Marconi paper (Pan et al., MLSys 2025) in two readings: ours, where
only the consumed state is refreshed and single-child states may go (`lru`), and the
paper's own, which evicts leaves only and refreshes the whole path (`sglang+`). SGLang
0.5.23 lets any state go (`sglang`).
"""

from __future__ import annotations

from sglang_hybrid.sim.jit import internal


@internal
def loss(last_use):
    return float(last_use)

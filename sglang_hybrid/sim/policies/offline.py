"""A greedy policy that knows the future.

FLOPs saved per byte freed and request waited until the next use (as the cache stands);
what is never used again goes first. Told more than any online policy, but greedy, and
its future is that of the cache as it stands: a yardstick, not a bound. After Belady, "A
study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966.
"""

from __future__ import annotations

from sglang_hybrid.sim.jit import internal
from sglang_hybrid.sim.union_tree import NEVER


@internal
def loss(efficiency, next_use, now):
    return -1.0 if next_use == NEVER else efficiency / (next_use - now)

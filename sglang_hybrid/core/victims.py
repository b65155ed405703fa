"""Index of eviction candidates that finds the victim without scanning them.

Candidates of (nearly) equal weight share a bucket; inside a bucket the order is
least recently used, for all time, because every policy's loss falls with age.
So only the oldest member of each bucket can be the victim, and a query compares
as many candidates as there are buckets (some forty for ten thousand
checkpoints at width 0.25), not as many as there are candidates.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from sglang_hybrid.core.policies import Entry, Policy


class VictimIndex:
    """Candidates of one policy in buckets of equal weight (a natural logarithm).

    Args:
        policy: gives weights their meaning.
        bucket_width: width of a bucket, in units of the weight. 0 keeps every distinct
            weight apart, which is the exact policy at the price of comparing as
            many candidates as there are distinct weights.

    Ties are broken by older last use, then smaller depth, then smaller key.
    """

    def __init__(self, policy: Policy, bucket_width: float) -> None:
        self.policy = policy
        if not bucket_width >= 0:
            raise ValueError(f"bucket_width must be a number >= 0, got {bucket_width!r}")
        # Narrower buckets would hold one weight each all the same.
        self.bucket_width = bucket_width if bucket_width > 1e-9 else 0.0
        self._entries: dict[int, Entry] = {}
        # Heaps with lazy deletion below the top: an item counts while it is its key's entry.
        self._heaps: dict[float, list[Entry]] = {}
        self._live: dict[float, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    @property
    def num_buckets(self) -> int:
        return len(self._heaps)

    def put(self, key: int, weight: float, last_use: int, depth: int, group: int = 0) -> None:
        """Add ``key`` or move it to its new place; ``group`` is for other indexes."""
        bucket = weight
        if self.bucket_width:
            bucket = math.floor(weight / self.bucket_width)
        entry = (last_use, depth, key, weight, bucket)
        old = self._entries.get(key)
        if old == entry:
            return
        self._entries[key] = entry
        if old is not None:
            self._forget(old)
        heap = self._heaps.get(bucket)
        if heap is None:
            self._heaps[bucket], self._live[bucket] = [entry], 1
        else:
            heapq.heappush(heap, entry)
            self._live[bucket] += 1

    def discard(self, key: int) -> None:
        """Remove ``key``; nothing happens if it is not there."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._forget(old)

    def entry(self, key: int) -> Entry | None:
        return self._entries.get(key)

    def entries(self) -> Iterable[Entry]:
        return self._entries.values()

    def heads(self) -> list[Entry]:
        """The oldest candidate of each bucket: all that can be the victim."""
        return [heap[0] for heap in self._heaps.values()]

    def victim(self, now: int) -> int | None:
        """The key of lowest loss, or None if there is no candidate. Removes nothing."""
        heads = self.heads()
        return self.policy.pick(heads, now)[2] if heads else None

    def order(self, now: int) -> list[int]:
        """All keys in the order in which they would go at ``now`` (for tests and tools)."""
        rest = sorted(self._entries.values())
        keys = []
        while rest:
            oldest: dict[float, Entry] = {}
            for entry in rest:
                oldest.setdefault(entry[4], entry)
            best = self.policy.pick(list(oldest.values()), now)
            keys.append(best[2])
            rest.remove(best)
        return keys

    def _forget(self, entry: Entry) -> None:
        """``entry`` no longer counts. The top of every heap stays one that does."""
        bucket = entry[4]
        live = self._live[bucket] - 1
        if live == 0:
            del self._live[bucket], self._heaps[bucket]
            return
        self._live[bucket] = live
        heap, entries = self._heaps[bucket], self._entries
        if len(heap) > 2 * live + 32:
            # Bounds the dead items, amortised over the updates that made them.
            heap[:] = [each for each in heap if entries.get(each[2]) is each]
            heapq.heapify(heap)
        while entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)


class Candidates(Protocol):
    """What a tier is: an index of candidates, such as `VictimIndex`, or several of them."""

    def __len__(self) -> int: ...

    def __contains__(self, key: int) -> bool: ...

    def put(self, key: int, weight: float, last_use: int, depth: int, group: int = 0) -> None: ...

    def discard(self, key: int) -> None: ...

    def entry(self, key: int) -> Entry | None: ...

    def entries(self) -> Iterable[Entry]: ...

    def heads(self) -> list[Entry]: ...

    def victim(self, now: int) -> int | None: ...

    def order(self, now: int) -> list[int]: ...


class VictimTiers:
    """Victim indexes that empty one after another: a tier goes before the next one."""

    def __init__(self, tiers: Sequence[Candidates]) -> None:
        self.tiers = list(tiers)
        self._tier_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tier_of)

    def __contains__(self, key: int) -> bool:
        return key in self._tier_of

    def put(
        self, key: int, tier: int, weight: float, last_use: int, depth: int, group: int = 0
    ) -> None:
        old = self._tier_of.get(key)
        if old is not None and old != tier:
            self.tiers[old].discard(key)
        self._tier_of[key] = tier
        self.tiers[tier].put(key, weight, last_use, depth, group)

    def discard(self, key: int) -> None:
        tier = self._tier_of.pop(key, None)
        if tier is not None:
            self.tiers[tier].discard(key)

    def keys(self) -> set[int]:
        return set(self._tier_of)

    def tier_of(self, key: int) -> int | None:
        return self._tier_of.get(key)

    def victim(self, now: int) -> int | None:
        for index in self.tiers:
            victim = index.victim(now)
            if victim is not None:
                return victim
        return None

    def order(self, now: int) -> list[int]:
        return [key for index in self.tiers for key in index.order(now)]

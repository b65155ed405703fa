"""Eviction candidates that are sampled instead of ordered.

For policies whose loss does not fall with age in a fixed order (`core.density`), so that
no index can tell the victim: it is the worst of a few candidates drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sglang_hybrid.core.density import Density
from sglang_hybrid.core.hit_density import MAX_DRAWS, SAMPLES
from sglang_hybrid.core.migration import MergedIndex
from sglang_hybrid.core.policies import Entry


class DrawList:
    """Keys in the order in which draws index them.

    A new key comes last; the last one takes the place of one that goes.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def append(self, key: int) -> None:
        self._places[key] = len(self.keys)
        self.keys.append(key)

    def remove(self, key: int) -> None:
        place, last = self._places.pop(key), self.keys.pop()
        if last != key:
            self.keys[place] = last
            self._places[last] = place


class SampledIndex:
    """Candidates of a `Density` policy, with the interface of `VictimIndex`.

    Args:
        policy: compares what was drawn.
        drawn_from: all live checkpoints, candidates or not. What is drawn and is no
            candidate counts as a draw only.
    """

    def __init__(self, policy: Density, drawn_from: DrawList) -> None:
        self.policy = policy
        self._drawn_from = drawn_from
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def put(self, key: int, weight: float, last_use: int, depth: int, group: int = 0) -> None:
        """Add ``key``, of class ``group``, or change its facts."""
        self._entries[key] = (last_use, depth, key, weight, group)

    def discard(self, key: int) -> None:
        """Remove ``key``; nothing happens if it is not there."""
        self._entries.pop(key, None)

    def entry(self, key: int) -> Entry | None:
        return self._entries.get(key)

    def entries(self) -> Iterable[Entry]:
        return self._entries.values()

    def heads(self) -> list[Entry]:
        """A sample of the candidates; one drawn twice counts twice."""
        return self.sample(self._entries.get, len(self._entries)) or list(self._entries.values())

    def sample(self, entry: Callable[[int], Entry | None], candidates: int) -> list[Entry]:
        """Draw until there are enough; maybe none.

        Args:
            entry: the candidate with a key, or None.
            candidates: how many there are. If none, the draws are skipped, not spared.
        """
        keys, random = self._drawn_from.keys, self.policy.random
        drawn: list[Entry] = []
        if not candidates:
            if keys:
                random.skip(MAX_DRAWS)
            return drawn
        for _ in range(MAX_DRAWS):
            found = entry(keys[random.draw(len(keys))])
            if found is not None:
                drawn.append(found)
                if len(drawn) == SAMPLES:
                    break
        return drawn

    def victim(self, now: int) -> int | None:
        """The key of lowest loss among those drawn, or None if there is no candidate."""
        heads = self.heads()
        return self.policy.pick(heads, now)[2] if heads else None

    def order(self, now: int) -> list[int]:
        """All keys by loss at ``now`` (for tests and tools); draws nothing."""
        entries = list(self._entries.values())
        losses = self.policy.losses(entries, now)
        return [entry[2] for _, entry in sorted(zip(losses, entries, strict=True))]


class MergedSampledIndex(MergedIndex):
    """A `MergedIndex` whose new index samples: all candidates are drawn from alike."""

    new: SampledIndex

    def heads(self) -> list[Entry]:
        return self.new.sample(self.entry, len(self)) or list(self.entries())

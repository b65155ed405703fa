"""Candidates on their way from the index of one policy to that of another.

Moving all at once would stop a server for as long as it takes to weigh thousands of
checkpoints. They move a few at a time; until then whoever has not moved competes with
the weight that the policy in force gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from sglang_hybrid.core.policies import Entry, Policy
from sglang_hybrid.core.victims import Candidates


class PolicyIndex(Candidates, Protocol):
    """Candidates of one policy."""

    @property
    def policy(self) -> Policy: ...


class MergedIndex:
    """Several indexes that choose one victim, by the policy of the ``new`` one.

    A candidate of an old index can be the victim if that index would compare it. So the
    cost of a query does not grow with the number of candidates.

    Args:
        old: indexes of earlier policies; they only get smaller.
        new: index of the policy in force; what is placed, is placed here.
        weighed: the entry that the policy in force gives to a candidate.
    """

    def __init__(
        self,
        old: Sequence[PolicyIndex],
        new: PolicyIndex,
        weighed: Callable[[int], Entry],
    ) -> None:
        self.old, self.new = tuple(old), new
        self._weighed = weighed

    def __len__(self) -> int:
        return len(self.new) + sum(len(index) for index in self.old)

    def __contains__(self, key: int) -> bool:
        return key in self.new or any(key in index for index in self.old)

    def put(self, key: int, weight: float, last_use: int, depth: int, group: int = 0) -> None:
        for index in self.old:
            index.discard(key)
        self.new.put(key, weight, last_use, depth, group)

    def discard(self, key: int) -> None:
        for index in (*self.old, self.new):
            index.discard(key)

    def entry(self, key: int) -> Entry | None:
        """As the policy in force sees it."""
        found = self.new.entry(key)
        if found is None and any(key in index for index in self.old):
            return self._weighed(key)
        return found

    def entries(self) -> Iterable[Entry]:
        yield from self.new.entries()
        for index in self.old:
            for entry in index.entries():
                yield self._weighed(entry[2])

    def heads(self) -> list[Entry]:
        old = (entry for index in self.old if len(index) for entry in index.heads())
        return [*self.new.heads(), *(self._weighed(entry[2]) for entry in old)]

    def victim(self, now: int) -> int | None:
        heads = self.heads()
        return self.new.policy.pick(heads, now)[2] if heads else None

    def order(self, now: int) -> list[int]:
        """All keys by loss at ``now``, as if all were compared."""
        entries = list(self.entries())
        losses = self.new.policy.losses(entries, now) if entries else []
        return [entry[2] for _, entry in sorted(zip(losses, entries, strict=True))]


def merged(
    now: Candidates,
    new: PolicyIndex,
    weighed: Callable[[int], Entry],
    kind: type[MergedIndex] = MergedIndex,
) -> MergedIndex:
    """``now``, of one policy or several, with ``new`` in force from here on."""
    old = (*now.old, now.new) if isinstance(now, MergedIndex) else (cast(PolicyIndex, now),)
    return kind([index for index in old if len(index)], new, weighed)

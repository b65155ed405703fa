"""The paper's tuner (Pan et al., "Marconi", MLSys 2025, section 4.2): one search.

It chooses once, where `decider.Decider` chooses again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang_hybrid.core.decider import Arms, Choice

FACTORS = range(5, 16)
"""Lengths of the bootstrap window in the paper, in requests before the first eviction."""


class Bootstrap(Arms):
    """The paper's tuner: LRU until the first eviction, a bootstrap window, one search.

    `observe` says when the window is full; the caller then lets every arm replay the
    requests so far, and hands what they saved to `update`.

    Args:
        names: of the arms, by rising alpha.
        in_force: index of the arm in force at the start: alpha 0, which is LRU.
        factor: requests until the search, in multiples of those before the first eviction.

    Raises:
        ValueError: names the value and what is allowed.
    """

    def __init__(self, names: Sequence[str], in_force: int = 0, *, factor: int = 5) -> None:
        super().__init__(names, in_force)
        if factor not in FACTORS:
            raise ValueError(
                f"factor = {factor!r} is not allowed; allowed: an integer from "
                f"{FACTORS[0]} to {FACTORS[-1]}"
            )
        self.factor = factor
        self.is_done = False
        self._is_searching = False

    def observe(self, requests: int, before_eviction: int | None) -> bool:
        """Whether the search is due; true once.

        Args:
            requests: served since the start or the last `reset`.
            before_eviction: of these, those before the first eviction; None: none yet.
        """
        if self.is_done or self._is_searching or before_eviction is None:
            return False
        # At least one request beyond the eviction, or there is nothing to learn from.
        if requests < max(before_eviction + 1, self.factor * before_eviction):
            return False
        self._is_searching = True
        return True

    def update(self, saved: Sequence[float]) -> Choice | None:
        """Take in what each arm saved in the search; the arm that comes into force, if any.

        Raises:
            ValueError: not one finite number >= 0 per arm, or no search was due.
        """
        values = self._checked(saved)
        if not self._is_searching:
            raise ValueError("savings of a search that was not due")
        self.is_done, self._is_searching = True, False
        best = values.index(max(values))
        now = self._in_force
        if best == now:
            return None
        text = (
            f"{self.names[now]} -> {self.names[best]}: saves most in the bootstrap window, "
            f"{values[best]:.4g} against {values[now]:.4g}"
        )
        self._in_force = best
        return Choice(best, "tuned", now, text)

    def reset(self) -> None:
        """The cache was emptied: a search that has not ended starts over with a new window."""
        self._is_searching = False

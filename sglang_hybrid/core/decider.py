"""Which arm's rules are in force, by what each arm would have saved.

An *arm* is a set of rules, such as a policy with its alpha. `Decider` chooses anew after
every window of requests, from what a cache under each arm would have saved. It is a
function of what it is told: same calls, same choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal["better", "guard", "tuned"]


@dataclass(frozen=True)
class Choice:
    """Another arm comes into force.

    Attributes:
        arm: its index.
        reason: `better`: it saved more lately; `guard`: the arm in force saved less than LRU;
            `tuned`: a single search found it.
        previous: index of the arm that was in force.
        text: one line for people, with both scores.
    """

    arm: int
    reason: Reason
    previous: int
    text: str


class Arms:
    """Names of the arms, and the one in force."""

    def __init__(self, names: Sequence[str], in_force: int) -> None:
        self.names = tuple(names)
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(
                f"arms {list(names)!r} are not allowed; allowed: one or more different names"
            )
        self._in_force = self._index("in_force", in_force)

    @property
    def in_force(self) -> int:
        """Index of the arm in force. It may be set: somebody else has put another in force."""
        return self._in_force

    @in_force.setter
    def in_force(self, arm: int) -> None:
        self._in_force = self._index("in_force", arm)
        self._came_into_force()

    def _came_into_force(self) -> None:
        """The arm in force was set."""

    def _index(self, what: str, arm: int) -> int:
        if not 0 <= arm < len(self.names):
            raise ValueError(
                f"{what} = {arm!r} is not allowed; allowed: an index from 0 to "
                f"{len(self.names) - 1}"
            )
        return arm

    def _checked(self, saved: Sequence[float]) -> list[float]:
        values = [float(value) for value in saved]
        if len(values) != len(self.names):
            raise ValueError(f"savings of {len(values)} arms; {len(self.names)} are needed")
        for name, value in zip(self.names, values, strict=True):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"arm {name!r} saved {value!r}, which is not allowed; allowed: a finite "
                    "number >= 0"
                )
        return values


class Decider(Arms):
    """Puts the arm in force that saved most lately.

    Savings fade, so that the choice follows the workload, and another arm must be better
    by a margin, so that it does not follow noise. Fading lets an arm that was good for
    long stay in force while it is bad; the guard against that compares with LRU window by
    window.

    Args:
        names: of the arms.
        in_force: index of the arm in force at the start.
        lru: index of the arm to fall back to; None: there is no guard.
        margin: an arm is better if it saved more than 1 + margin times as much.
        decay: of the scores, per window; 0 looks at the last window only.
        guard_windows: so many consecutive windows below LRU are too many.

    Raises:
        ValueError: names the value and what is allowed.
    """

    def __init__(
        self,
        names: Sequence[str],
        in_force: int,
        lru: int | None,
        *,
        margin: float = 0.02,
        decay: float = 0.8,
        guard_windows: int = 2,
    ) -> None:
        super().__init__(names, in_force)
        self.lru = None if lru is None else self._index("lru", lru)
        if not (math.isfinite(margin) and margin >= 0):
            raise ValueError(f"margin = {margin!r} is not allowed; allowed: a finite number >= 0")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay = {decay!r} is not allowed; allowed: a number from 0 to 1")
        if guard_windows < 1:
            raise ValueError(
                f"guard_windows = {guard_windows!r} is not allowed; allowed: an integer from 1"
            )
        self.margin, self.decay, self.guard_windows = margin, decay, guard_windows
        self.reset()

    @property
    def scores(self) -> tuple[float, ...]:
        """Faded savings of the arms, in the unit of what `update` is given."""
        return tuple(self._scores)

    def _came_into_force(self) -> None:
        self._below_lru = 0

    def reset(self) -> None:
        """Forget all savings: the cache was emptied. The arm in force stays."""
        self._scores = [0.0] * len(self.names)
        self._below_lru = 0

    def update(self, saved: Sequence[float]) -> Choice | None:
        """Take in what each arm saved in one window; the arm that comes into force, if any.

        Raises:
            ValueError: not one finite number >= 0 per arm.
        """
        values = self._checked(saved)
        self._scores = [
            self.decay * score + value for score, value in zip(self._scores, values, strict=True)
        ]
        return self._guarded(values) or self._better()

    def _guarded(self, saved: Sequence[float]) -> Choice | None:
        if self.lru is None:
            return None
        mine, lru = saved[self._in_force], saved[self.lru]
        is_below = self._in_force != self.lru and lru > mine * (1 + self.margin)
        self._below_lru = self._below_lru + 1 if is_below else 0
        if self._below_lru < self.guard_windows:
            return None
        text = (
            f"{self.names[self._in_force]} -> {self.names[self.lru]}: saved less in "
            f"{self._below_lru} windows running, {mine:.4g} against {lru:.4g} in the last"
        )
        # What arms saved before the workload changed must put none in force that is as bad now.
        self._scores = [
            min(score, self._scores[self.lru]) if lru > value * (1 + self.margin) else score
            for score, value in zip(self._scores, saved, strict=True)
        ]
        return self._switch(self.lru, "guard", text)

    def _better(self) -> Choice | None:
        scores, now = self._scores, self._in_force
        best = max(
            range(len(scores)), key=lambda arm: (scores[arm], arm == now, arm == self.lru, -arm)
        )
        if scores[best] <= scores[now] * (1 + self.margin):
            return None
        text = (
            f"{self.names[now]} -> {self.names[best]}: saves more lately, "
            f"{scores[best]:.4g} against {scores[now]:.4g}"
        )
        return self._switch(best, "better", text)

    def _switch(self, arm: int, reason: Reason, text: str) -> Choice:
        choice = Choice(arm, reason, self._in_force, text)
        self.in_force = arm
        return choice

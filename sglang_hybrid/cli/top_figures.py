"""Figures of a cache's status, in total and over an interval. No server, no terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Rates:
    """Sums over all DP ranks, of a whole life or of an interval.

    Attributes:
        counters: as the server reports them.
        short_hits: requests and tokens, by reason.
        times: calls and seconds of the scheduler, by section; empty without metrics.
    """

    counters: Mapping[str, float]
    short_hits: Mapping[str, Mapping[str, float]]
    times: Mapping[str, Mapping[str, float]]

    @property
    def hit_rate(self) -> float | None:
        """Tokens hit per prompt token; None where there was no request."""
        return _ratio(self.counters, "hit_tokens", "prompt_tokens")

    @property
    def lost_rate(self) -> float | None:
        """Tokens lost to a missing state per prompt token."""
        return _ratio(self.counters, "lost_tokens", "prompt_tokens")

    @property
    def saved_rate(self) -> float | None:
        """Share of the FLOPs of all prompts that hits saved."""
        return _ratio(self.counters, "saved_flops", "prompt_flops")

    def as_dict(self) -> dict[str, Any]:
        return {
            "hit_rate": self.hit_rate,
            "lost_rate": self.lost_rate,
            "saved_flops_rate": self.saved_rate,
            "counters": dict(self.counters),
            "short_hits": {reason: dict(found) for reason, found in self.short_hits.items()},
            "times": {section: dict(found) for section, found in self.times.items()},
        }

    @classmethod
    def total(cls, caches: Sequence[Status]) -> Rates:
        """Since the start of the server."""
        return cls(
            _sum([status["counters"] for status in caches]),
            _sum_of_each([status.get("short_hits") or {} for status in caches]),
            _sum_of_each([status.get("times") or {} for status in caches]),
        )

    def since(self, before: Rates) -> Rates:
        """What was added since ``before``; all of it, if the server started anew meanwhile."""
        if self.counters.get("requests", 0) < before.counters.get("requests", 0):
            return self
        return Rates(
            _less(self.counters, before.counters),
            _less_of_each(self.short_hits, before.short_hits),
            _less_of_each(self.times, before.times),
        )


@dataclass(frozen=True)
class Figures:
    """One look at a server.

    Attributes:
        caches: status of every DP rank, as reported.
        total: since the start.
        interval: since the look before; None for the first.
        seconds: length of the interval.
    """

    caches: Sequence[Status]
    total: Rates
    interval: Rates | None = None
    seconds: float = math.nan

    @classmethod
    def of(
        cls,
        caches: Sequence[Status],
        before: Sequence[Status] | None = None,
        seconds: float = math.nan,
    ) -> Figures:
        """A look, and the one before it where there was one."""
        total = Rates.total(caches)
        if before is None:
            return cls(caches, total)
        return cls(caches, total, total.since(Rates.total(before)), seconds)

    @property
    def live(self) -> dict[str, float]:
        """Live checkpoints by kind."""
        return _sum([status.get("live") or {} for status in self.caches])

    @property
    def live_bytes(self) -> dict[str, float]:
        """Their bytes on one tensor-parallel rank of every DP rank."""
        return _sum(
            [
                {kind: n * status.get("state_bytes", 0) for kind, n in status["live"].items()}
                for status in self.caches
                if status.get("live")
            ]
        )

    @property
    def tunings(self) -> list[Mapping[str, Any] | None]:
        """Status of the tuner of every DP rank; None where the policy is fixed."""
        return [status.get("tuning") for status in self.caches]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        interval = self.interval.as_dict() if self.interval else None
        return {
            "ranks": len(self.caches),
            "total": self.total.as_dict(),
            "interval": interval and {"seconds": self.seconds, **interval},
            "checkpoints": self.live,
            "checkpoint_bytes": self.live_bytes,
            "config": [status.get("config") for status in self.caches],
            "tuning": self.tunings,
            "parts": [status.get("parts") for status in self.caches],
        }


def _ratio(counters: Mapping[str, float], part: str, whole: str) -> float | None:
    return counters.get(part, 0) / counters[whole] if counters.get(whole) else None


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: sum(part.get(key, 0) for part in parts) for key in keys}


def _sum_of_each(
    parts: Sequence[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float]]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _sum([part.get(key, {}) for part in parts]) for key in keys}


def _less(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {key: value - before.get(key, 0) for key, value in now.items()}


def _less_of_each(
    now: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    return {key: _less(value, before.get(key, {})) for key, value in now.items()}

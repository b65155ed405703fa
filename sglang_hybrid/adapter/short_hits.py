"""Why a request hit less of its prompt than it could have."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """What ended a hit."""

    FULL = "full"  # nothing is missing
    NO_KV = "no kv"  # nothing is cached beyond the hit
    NO_STATE = "no state"  # there is KV, and no state was kept on it yet
    EVICTED = "evicted"  # a checkpoint deeper on the path was evicted
    MIN_GAIN = "min gain"  # the KV ends less than min_gain_tokens beyond the hit
    GRID = "grid"  # the KV ends less than a grid step beyond the hit
    NO_SLOT = "no slot"  # the hit was given up: no slot for the copy of its state
    NOT_RELOADED = "not reloaded"  # the hit was given up: no room to bring it back from the host


_FIRST = (Reason.NO_SLOT, Reason.NOT_RELOADED, Reason.EVICTED, Reason.NO_STATE)
"""Reasons that are named even where more tokens were never cached."""


@dataclass(frozen=True, slots=True)
class ShortHit:
    """How far one request's prompt was known, in tokens.

    Attributes:
        prompt: tokens to prefill.
        reusable: the most that can be hit; the last token must be computed.
        hit: prefix that was reused.
        kv: prefix whose KV was found.
        evicted: depth of a checkpoint that was evicted with its KV; 0 if none is known.
        beyond: why the KV beyond the hit, if there is any, was not reused.
    """

    prompt: int
    reusable: int
    hit: int
    kv: int
    evicted: int
    beyond: Reason

    def missing(self) -> dict[Reason, int]:
        """Tokens between ``hit`` and ``reusable``, by reason, in the order of the prompt."""
        known = max(self.hit, min(self.kv, self.reusable))
        evicted = max(known, min(self.evicted, self.reusable))
        tokens: dict[Reason, int] = {}
        for reason, count in (
            (self.beyond, known - self.hit),
            (Reason.EVICTED, evicted - known),
            (Reason.NO_KV, self.reusable - evicted),
        ):
            if count > 0:
                tokens[reason] = tokens.get(reason, 0) + count
        return tokens

    @property
    def reason(self) -> Reason:
        """What ended the hit.

        The KV beyond a hit is often that of a few tokens which all prompts begin with: too
        little for a checkpoint, and not why the hit was short if most was never cached.
        """
        missing = self.missing()
        if not missing:
            return Reason.FULL
        first = next((reason for reason in _FIRST if reason in missing), None)
        return first or max(missing, key=lambda reason: missing[reason])

    def as_dict(self) -> dict[str, int | str]:
        """For a reply; values are what SGLang passes on, int or str."""
        return {
            "reason": str(self.reason),
            "missing": ", ".join(f"{reason} {n}" for reason, n in self.missing().items()),
            "hit": self.hit,
            "kv": self.kv,
            "evicted": self.evicted,
            "prompt": self.prompt,
        }


@dataclass
class ShortHits:
    """Totals since start-up: requests by reason, and the tokens that they missed."""

    requests: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    tokens: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))

    def count(self, short: ShortHit) -> None:
        self.requests[short.reason] += 1
        for reason, tokens in short.missing().items():
            self.tokens[reason] += tokens

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {
            str(reason): {"requests": self.requests[reason], "tokens": self.tokens[reason]}
            for reason in Reason
        }

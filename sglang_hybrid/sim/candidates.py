"""Ways to run the server: what `--cache-config` and SGLang's flags can express, for replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STOCK_POLICY, STOCK_ADMISSION, STOCK_RATIO = "sglang", "stock", 0.9
RATIOS = (0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 1.8, 2.5, 3.5, 6.0)
"""Of state to KV bytes: what `--mamba-full-memory-ratio` is tried with."""


@dataclass(frozen=True)
class Candidate:
    """A way to run the server.

    Attributes:
        config: keys of `--cache-config` that differ from their defaults.
        admission: the parameters of docs/simulator.md that are the same.
    """

    policy: str
    config: dict[str, Any]
    admission: str
    ratio: float

    @property
    def distance_from_default(self) -> tuple[int, float]:
        """How much an operator would have to set: keys, then how far from SGLang's ratio."""
        ratio = self.ratio / STOCK_RATIO
        return len(self.config) + (ratio != 1), max(ratio, 1 / ratio)


def policies() -> list[tuple[str, dict[str, Any]]]:
    """What `--cache-config` can order victims by, the default first."""
    utility = [
        (f"utility:alpha={alpha:g}", {"policy": "utility", "alpha": alpha})
        for alpha in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]
    marconi = [
        (f"marconi:alpha={alpha:g}", {"policy": "marconi", "alpha": alpha})
        for alpha in (0.3, 1.0, 3.0, 10.0)
    ]
    fixed = [(name, {"policy": name}) for name in ("density", "lru")]
    return [("auto", {}), *utility, *marconi, *fixed]


def admissions() -> list[tuple[dict[str, Any], str]]:
    """Keys of `--cache-config`, and what they do in a replay; the defaults first."""
    return [
        ({}, "shipped"),
        ({"ghost_forks": False}, "shipped:ghost_forks=0"),
        *(
            ({"min_gain_tokens": gain}, f"shipped:min_gain_tokens={gain}")
            for gain in (32, 512, 2048)
        ),
        (
            {"prompt_end": "never", "chunk_boundary": "never"},
            "shipped:prompt_end=0:chunk_tokens=0",
        ),
        (
            {"prompt_end": "always", "chunk_boundary": "never"},
            "shipped:prompt_end=1:chunk_tokens=0:first_victims=false",
        ),
    ]

"""Sampled hit density as a policy of the served cache; see `core.hit_density`.

The same decisions as the compiled replay's, in plain Python and numpy: the same table of
densities and the same random numbers, which depend on nothing but the operations so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_hybrid.core.hit_density import (
    AGE_BINS,
    AGES,
    CLASSES,
    DENSITIES,
    ENDS,
    FADE_EVERY,
    FADING,
    HITS,
    POOLS,
    RECOMPUTE_EVERY,
    SMOOTHING,
    DensityTable,
    age_bin,
    new_table,
    pool_of_class,
)
from sglang_hybrid.core.policies import Entry

_MASK = 2**64 - 1
_POOL_OF = CLASSES + np.array([pool_of_class(row) for row in range(CLASSES)])
_PRIOR = 1 / (2 * AGES[:AGE_BINS])
_WIDTHS = AGES[1:] - AGES[:-1]


@dataclass
class SplitMix64:
    """Random numbers (Steele, Lea and Flood, OOPSLA 2014) from a state of 64 bits."""

    state: int

    def draw(self, count: int) -> int:
        """A number in 0..count - 1; ``count`` is below 2^32."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (((z ^ (z >> 31)) >> 32) * count) >> 32

    def skip(self, draws: int) -> None:
        """As if so many numbers had been drawn."""
        self.state = (self.state + draws * 0x9E3779B97F4A7C15) & _MASK


class Density:
    """Density of hits, learned online, times FLOPs saved per byte freed.

    The last field of an `Entry` is the candidate's class here. Candidates are sampled
    (`SampledIndex`), not compared all.

    Args:
        seed: of the sampling.
    """

    name = "density"

    def __init__(self, seed: int = 0) -> None:
        self.random = SplitMix64(seed)
        self.table = new_table()
        self._rows = self._densities()

    def adopt(self, table: DensityTable) -> None:
        """Go on with a copy of what another cache has learned."""
        shape = (3, CLASSES + POOLS, AGE_BINS)
        if table.cells.shape != shape or table.events.shape != (1,):
            raise ValueError(
                f"a table of densities has cells of shape {shape} and events of shape (1,), got "
                f"{table.cells.shape} and {table.events.shape}"
            )
        self.table = DensityTable(table.cells.astype(np.float64), table.events.astype(np.int64))
        self._rows = self._densities()

    def learn(self, row: int, age: int, is_hit: bool) -> None:
        """A checkpoint of class ``row`` was consumed, or evicted, ``age`` requests after its use.

        The vectorised form of `hit_density.count_event`.
        """
        table, at = self.table, age_bin(age)
        counts = table.cells[HITS if is_hit else ENDS]
        counts[row, at] += 1
        counts[_POOL_OF[row], at] += 1
        table.events[0] += 1
        if table.events[0] % RECOMPUTE_EVERY == 0:
            recompute(table)
            self._rows = self._densities()
            if table.events[0] % FADE_EVERY == 0:
                table.cells[:DENSITIES] *= FADING

    def weight(
        self, saved_flops: float, freed_bytes: float, hits: int = 0, superseded: bool = False
    ) -> float:
        return saved_flops / freed_bytes

    def losses(self, heads: Sequence[Entry], now: int) -> list[float]:
        rows = self._rows
        return [rows[int(head[4])][age_bin(now - head[0])] * head[3] for head in heads]

    def pick(self, heads: Sequence[Entry], now: int) -> Entry:
        return min(zip(self.losses(heads, now), heads, strict=True))[1]

    def _densities(self) -> list[list[float]]:
        """As lists, whose items Python reads much faster."""
        rows: list[list[float]] = self.table.cells[DENSITIES].tolist()
        return rows


def recompute(table: DensityTable) -> None:
    """What `hit_density.recompute` computes, all classes at once and bit for bit."""
    counts, densities = table.cells[:DENSITIES], table.cells[DENSITIES]
    here = counts[HITS] + counts[ENDS]
    hits = _from_the_oldest(counts[HITS])
    events = _from_the_oldest(here)
    # Two summands per bin, added one after the other as the scalar form does.
    terms = np.zeros((len(here), AGE_BINS, 2))
    terms[:, :-1, 1] = events[:, 1:] * _WIDTHS[:-1]
    terms[:, :, 0] = here * 0.5 * _WIDTHS
    remaining = _from_the_oldest(terms.reshape(len(here), -1))[:, ::2]
    densities[CLASSES:] = _smoothed(hits[CLASSES:], remaining[CLASSES:], _PRIOR)
    densities[:CLASSES] = _smoothed(hits[:CLASSES], remaining[:CLASSES], densities[_POOL_OF])


def _from_the_oldest(values: np.ndarray) -> np.ndarray:
    """Sums of each row from every bin on, added up from the oldest bin down."""
    sums: np.ndarray = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    return sums


def _smoothed(hits: np.ndarray, remaining: np.ndarray, expected: np.ndarray) -> np.ndarray:
    densities: np.ndarray = (hits + SMOOTHING) / (remaining + SMOOTHING / expected)
    return densities

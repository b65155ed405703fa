"""Hit density, learned online: hits per unit of time that a checkpoint is kept.

After Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density"
(NSDI 2018). Checkpoints are put in classes; per class and age the expected hits over
the expected remaining lifetime are estimated from what happened to earlier ones. A
class with few events leans on its pool, and a pool on Lindy's rule (one hit per twice
the age). A policy multiplies a density by the FLOPs a hit saves over the bytes freed.

Plain functions on arrays: numba compiles them as they are. Rules: docs/simulator.md,
"Sampled hit density".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.checkpoints import Kind

CLASSES = 72
POOLS = 12
AGE_BINS = 64
SMOOTHING = 1.0
"""Events that the prior counts for."""
RECOMPUTE_EVERY = 32
FADE_EVERY = 512
FADING = 0.9
SAMPLES = 32
MAX_DRAWS = 256


AGES = 2.0 ** (np.arange(AGE_BINS + 1) / 4)
"""Lower edge of each bin, in requests."""

HITS, ENDS, DENSITIES = range(3)

BRANCH, GHOST_FORK = int(Kind.BRANCH), int(Kind.GHOST_FORK)


class DensityTable(NamedTuple):
    """Counts of hits and ends (evictions) per class and age bin, and what follows from them.

    Attributes:
        cells: float64[3, CLASSES + POOLS, AGE_BINS]: `HITS`, `ENDS`, `DENSITIES`; the
            rows of the pools come last.
        events: int64[1].
    """

    cells: NDArray[np.float64]
    events: NDArray[np.int64]


def new_table() -> DensityTable:
    """A table that has seen nothing: all densities are the prior's."""
    cells = np.zeros((3, CLASSES + POOLS, AGE_BINS))
    cells[DENSITIES] = 1 / (2 * AGES[:AGE_BINS])
    return DensityTable(cells, np.zeros(1, np.int64))


def age_bin(age: int) -> int:
    """Bin of an age in requests."""
    if age <= 1:
        return 0
    return min(AGE_BINS - 1, int(4 * math.log2(age)))


def class_of(is_leaf: bool, hits: int, kind: int, turn: int) -> int:
    """Class of a checkpoint; ``kind`` is a `Kind`, ``turn`` that of the request that made it."""
    if kind == GHOST_FORK:
        kind = BRANCH
    return ((0 if is_leaf else 1) * 3 + min(hits, 2)) * 12 + min(kind, 3) * 3 + min(turn, 2)


def pool_of_class(row: int) -> int:
    """Pool of a class: without the turn, and of the kind only whether it is a branch."""
    return (row // 12) * 2 + (1 if row % 12 // 3 == 1 else 0)


def count_event(table: DensityTable, row: int, age: int, is_hit: bool) -> None:
    """A checkpoint of class ``row`` was consumed, or evicted, at ``age``."""
    at = age_bin(age)
    pool = CLASSES + pool_of_class(row)
    what = HITS if is_hit else ENDS
    table.cells[what, row, at] += 1
    table.cells[what, pool, at] += 1
    table.events[0] += 1
    if table.events[0] % RECOMPUTE_EVERY == 0:
        recompute(table)
        if table.events[0] % FADE_EVERY == 0:
            counts = table.cells[:DENSITIES]
            np.multiply(counts, FADING, counts)


def recompute(table: DensityTable) -> None:
    """Densities from the counts."""
    for row in range(CLASSES, CLASSES + POOLS):
        _fill(table, row, -1)
    for row in range(CLASSES):
        _fill(table, row, CLASSES + pool_of_class(row))


def _fill(table: DensityTable, row: int, prior: int) -> None:
    """Densities of one row, from the oldest bin down.

    ``prior`` is the row whose densities one without events takes, -1 for Lindy's rule.
    """
    cells = table.cells
    hits = events = remaining = 0.0
    for b in range(AGE_BINS - 1, -1, -1):
        here = cells[HITS, row, b] + cells[ENDS, row, b]
        width = AGES[b + 1] - AGES[b]
        remaining = remaining + events * width + here * 0.5 * width
        hits += cells[HITS, row, b]
        events += here
        expected = 1 / (2 * AGES[b]) if prior < 0 else cells[DENSITIES, prior, b]
        cells[DENSITIES, row, b] = (hits + SMOOTHING) / (remaining + SMOOTHING / expected)

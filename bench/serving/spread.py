"""Which differences between two arms are more than chance, from runs with the same seeds.

The rule: for each seed that both arms finished, take the difference of the two runs (for times
and throughputs the logarithm of their ratio). A difference is stated only if the confidence
interval of Student's t for the mean of these paired differences leaves out zero, on two sides.
With fewer than two seeds nothing is stated. Two seeds ask for much: at 95 % the mean must be
6.4 times the distance between the two differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student_t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Of one figure between two arms, in the unit of the figure or as a ratio less one.

    Attributes:
        mean: over the seeds.
        low, high: ends of the confidence interval; infinite with fewer than two seeds.
        seeds: that both arms finished.
        stated: whether it lies outside of the spread.
    """

    mean: float
    low: float
    high: float
    seeds: int
    stated: bool


def paired(
    values: Mapping[int, float],
    reference: Mapping[int, float],
    *,
    ratio: bool = False,
    confidence: float = CONFIDENCE,
) -> Difference | None:
    """``values`` less ``reference``, both by seed; None without a common seed.

    Args:
        ratio: compare ratios (values must be above 0): -0.3 is 30 % less.
    """
    seeds = sorted(set(values) & set(reference))
    if not seeds:
        return None
    if ratio:
        differences = [math.log(values[seed] / reference[seed]) for seed in seeds]
    else:
        differences = [values[seed] - reference[seed] for seed in seeds]
    mean = fmean(differences)
    half = math.inf
    if len(seeds) > 1:
        quantile = float(student_t.ppf((1 + confidence) / 2, len(seeds) - 1))
        half = quantile * stdev(differences) / math.sqrt(len(seeds))
    shown = math.expm1 if ratio else float
    return Difference(
        shown(mean), shown(mean - half), shown(mean + half), len(seeds), abs(mean) > half
    )

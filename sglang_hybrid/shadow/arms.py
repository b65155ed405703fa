"""What the running server can choose from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.policy_spec import parse_policy
from sglang_hybrid.sim.tuning import ALPHAS, Arm, default_arms, different_arms

MARCONI_ALPHAS = (0, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8)
"""Alphas of `marconi`; the first one starts, which is LRU."""


def arms_for(policy: Literal["auto", "marconi"], admission: Admission) -> tuple[Arm, ...]:
    """The arms of a server whose admission is ``admission``; the first one starts.

    `auto` has each of its policies with that admission and with the same without states
    that nobody asked for, where that is another. `marconi` has one policy with several
    alphas.

    Raises:
        ValueError: another policy.
    """
    if policy == "auto":
        arms = list(default_arms())
    elif policy == "marconi":
        arms = marconi_arms(MARCONI_ALPHAS)
    else:
        raise ValueError(f"policy {policy!r} is not tuned; allowed: 'auto', 'marconi'")
    return tuple(different_arms(arms, admission))


def bootstrap_arms() -> tuple[Arm, ...]:
    """The arms of the paper's tuner: its grid of alphas, from 0 (LRU) upwards."""
    return tuple(marconi_arms(ALPHAS))


def marconi_arms(alphas: Iterable[float]) -> list[Arm]:
    """The paper's score, once per alpha."""
    return [Arm(parse_policy(f"marconi:alpha={alpha:g}")) for alpha in alphas]


def lru_index(arms: Sequence[Arm]) -> int:
    """Index of the first arm that orders by recency alone.

    Raises:
        ValueError: there is none.
    """
    for i, arm in enumerate(arms):
        if arm.policy.kind == "lru" or (arm.policy.kind == "marconi" and arm.policy.alpha == 0):
            return i
    raise ValueError(f"no LRU among the arms {[arm.name for arm in arms]}")

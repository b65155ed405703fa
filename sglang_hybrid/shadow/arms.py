"""The arms that a server chooses among."""

from __future__ import annotations

from typing import Literal

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.policy_spec import parse_policy
from sglang_hybrid.sim.tuning import Arm, default_arms, different_arms

MARCONI_ALPHAS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def arms_for(policy: Literal["auto", "marconi"] | str, admission: Admission) -> tuple[Arm, ...]:
    """What a tuner with ``policy`` can put in force; the first arm starts.

    Args:
        policy: of `--cache-config`: "auto", or "marconi" with its alpha tuned.
        admission: of the server. Arms of "auto" come with it, and without the states that
            nobody asked for, where that is not the same.

    Raises:
        ValueError: a policy that is not tuned.
    """
    if policy == "marconi":
        return tuple(Arm(parse_policy(f"marconi:alpha={alpha:g}")) for alpha in MARCONI_ALPHAS)
    if policy != "auto":
        raise ValueError(f"policy {policy!r} is not tuned; allowed: auto, marconi")
    return tuple(different_arms(default_arms(), admission))

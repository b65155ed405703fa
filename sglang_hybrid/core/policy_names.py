"""Policies by name."""

from __future__ import annotations

from sglang_hybrid.core.density import Density
from sglang_hybrid.core.policies import LRU, Marconi, Policy, Utility


def make_policy(name: str, alpha: float) -> Policy:
    """The policy called ``name``; raises ValueError for an unknown name.

    ``alpha`` is for those that have one.
    """
    if name == LRU.name:
        return LRU()
    if name == Utility.name:
        return Utility(alpha)
    if name == Marconi.name:
        return Marconi(alpha)
    if name == "density":
        return Density()
    raise ValueError(f"unknown policy {name!r}; known: density, lru, marconi, utility")

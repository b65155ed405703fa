"""How much memory a cache has: bytes for all, or two pools."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang_hybrid.core.costs import ModelCosts

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power


@dataclass(frozen=True)
class Budget:
    """Memory for KV and states.

    Attributes:
        total_bytes: bytes of both together.
        state_slots: size of the state pool; None: one budget for all.
        kv_tokens: size of the KV pool, None together with `state_slots`.
        ratio: of state to KV bytes, where `split` made the pools; for reports.
    """

    total_bytes: float
    state_slots: int | None = None
    kv_tokens: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if not self.total_bytes >= 0:
            raise ValueError(f"budget {self.total_bytes!r} bytes is not allowed; allowed: >= 0")
        if (self.state_slots is None) != (self.kv_tokens is None):
            raise ValueError("a budget of two pools needs both state_slots and kv_tokens")

    @property
    def has_pools(self) -> bool:
        return self.state_slots is not None

    @classmethod
    def split(cls, total_bytes: float, costs: ModelCosts, ratio: float) -> Budget:
        """Two pools as SGLang makes them: state bytes = ``ratio`` x KV bytes.

        ``ratio`` is SGLang's `--mamba-full-memory-ratio`.
        """
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio {ratio!r} of state to KV bytes is not allowed; allowed: > 0")
        slots = int(total_bytes * ratio / (1 + ratio) // costs.state_bytes)
        tokens = int(total_bytes / (1 + ratio) // costs.kv_bytes_per_token)
        return cls(total_bytes, slots, tokens, ratio)


def parse_bytes(text: str) -> float:
    """`6GiB`, `12GB` (10^9 bytes), `800MB`, or plain bytes.

    Raises:
        ValueError: names the value and what is allowed.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(
            f"{text!r} is not a size; allowed: a number with a unit, such as 6GiB (2^30 bytes) "
            "or 12GB (10^9 bytes)"
        )
    return float(match.group(1)) * _UNITS[unit]

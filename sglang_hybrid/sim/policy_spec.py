"""Which eviction policy a replay runs, with its parameters.

The rules are in docs/simulator.md, "Eviction"; the compiled losses in `policies/`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from sglang_hybrid.core.policies import MAX_ALPHA

Kind = Literal["lru", "utility", "marconi", "gdsf", "seglen", "tlru", "density", "offline"]
Candidates = Literal["single_child", "leaf", "any"]


@dataclass(frozen=True)
class PolicySpec:
    """Parameters of an eviction policy; each policy reads those that concern it.

    Attributes:
        kind: which loss orders the candidates.
        name: as given by the user.
        alpha: weight of FLOP efficiency (utility, marconi).
        recency: form of the recency term (marconi).
        cost: what GDSF counts as the cost of a miss.
        weight: share of the length term (seglen).
        threshold: tokens whose recomputation is tolerated (tlru).
        seed: of the sampled candidates (density).
        bucket_width: of the victim index; 0 compares every candidate.
        candidates: which states may go.
        refresh: whether a hit refreshes the consumed state or its whole path.
        kv_lru: with two pools, KV goes by least recent walk, whatever the policy.
    """

    kind: Kind
    name: str = ""
    alpha: float = 0.5
    recency: Literal["linear", "hyperbolic"] = "linear"
    cost: Literal["flops", "one"] = "flops"
    weight: float = 0.85
    threshold: int = 2000
    seed: int = 0
    bucket_width: float = 0.25
    candidates: Candidates = "single_child"
    refresh: Literal["consumed", "path"] = "consumed"
    kv_lru: bool = False

    def __post_init__(self) -> None:
        for key, hint in get_type_hints(PolicySpec).items():
            value = getattr(self, key)
            if get_args(hint) and value not in get_args(hint):
                self._refuse(key, value, ", ".join(map(str, get_args(hint))))
        if not 0 <= self.alpha <= MAX_ALPHA:
            self._refuse("alpha", self.alpha, f"a number from 0 to {MAX_ALPHA:g}")
        if not 0 <= self.weight <= 1:
            self._refuse("weight", self.weight, "a number from 0 to 1")
        if not 0 <= self.bucket_width <= 1e6:
            self._refuse("bucket_width", self.bucket_width, "a number from 0 to 1e6")
        if not 0 <= self.threshold < 2**31:
            self._refuse("threshold", self.threshold, f"an integer from 0 to {2**31 - 1}")
        if not 0 <= self.seed < 2**63:
            self._refuse("seed", self.seed, f"an integer from 0 to {2**63 - 1}")
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    def _refuse(self, key: str, value: Any, allowed: str) -> None:
        raise ValueError(
            f"policy {self.name or self.kind!r}: {key} = {value!r} is not allowed; "
            f"allowed: {allowed}"
        )


PRESETS: dict[str, tuple[PolicySpec, str]] = {
    "lru": (PolicySpec("lru"), "least recently consumed; single-child states may go"),
    "sglang+": (
        PolicySpec("lru", candidates="leaf", refresh="path"),
        "LRU as the paper's SGLang+: leaves only, a hit refreshes its whole path",
    ),
    "sglang": (
        PolicySpec("lru", candidates="any", kv_lru=True),
        "LRU as in SGLang 0.5.23: any state; KV by least recent walk",
    ),
    "utility": (PolicySpec("utility"), "log utility: FLOPs per byte, age, hits, superseded"),
    "marconi": (
        PolicySpec("marconi", alpha=1.0),
        "the paper's recency + alpha * efficiency, recency linear in age",
    ),
    "marconi-hyperbolic": (
        PolicySpec("marconi", alpha=1.0, recency="hyperbolic", bucket_width=0.0),
        "the same with recency 1/age, as in the paper's artifact",
    ),
    "gdsf": (PolicySpec("gdsf"), "greedy dual-size frequency on FLOPs"),
    "gdsf-1": (PolicySpec("gdsf", cost="one"), "greedy dual-size frequency, every hit worth one"),
    "seglen": (PolicySpec("seglen"), "length of the segment, and recency"),
    "tlru": (PolicySpec("tlru"), "LRU that spares long recomputations"),
    "density": (PolicySpec("density"), "sampled hit density, learned online"),
    "offline": (PolicySpec("offline"), "knows the future: greedy FLOPs per byte and waiting time"),
}


def parse_policy(text: str) -> PolicySpec:
    """`NAME[:KEY=VALUE...]`, for example `marconi:alpha=1`.

    Raises:
        ValueError: names the value, what is allowed, and the closest name.
    """
    name, *options = text.split(":")
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown policy {name!r}; allowed: {', '.join(PRESETS)}{hint}")
    hints = get_type_hints(PolicySpec)
    keys = [field.name for field in fields(PolicySpec) if field.name not in ("kind", "name")]
    changes: dict[str, Any] = {"name": text}
    for option in options:
        key, separator, value = option.partition("=")
        if key not in keys or not separator:
            raise ValueError(
                f"policy {text!r}: {option!r} is not KEY=VALUE with a known key; allowed keys: "
                f"{', '.join(keys)}"
            )
        changes[key] = _value(text, key, value, hints[key])
    return replace(PRESETS[name][0], **changes)


def _value(text: str, key: str, value: str, hint: Any) -> Any:
    if hint is bool:
        if value.lower() in ("true", "1"):
            return True
        if value.lower() in ("false", "0"):
            return False
        raise ValueError(f"policy {text!r}: {key} = {value!r} is not allowed; allowed: true, false")
    if hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            what = "an integer" if hint is int else "a number"
            raise ValueError(
                f"policy {text!r}: {key} = {value!r} is not allowed; allowed: {what}"
            ) from None
    return value

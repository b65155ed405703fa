"""What a replay came to: figures as docs/simulator.md, "Metrics", defines them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.engine.cache import Cache
from sglang_hybrid.sim.policy_spec import PRESETS
from sglang_hybrid.sim.replay import count
from sglang_hybrid.sim.trace import FloatArray, IntArray
from sglang_hybrid.sim.tuning import Switch
from sglang_hybrid.sim.workload import Workload

LENGTH_EDGES = (0, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Where buckets of prompt lengths begin, in tokens."""

_WEIGHS_BY_ALPHA = ("utility", "marconi")


def flops_of(costs: ModelCosts, tokens: IntArray) -> FloatArray:
    """FLOPs of prefills of so many tokens each."""
    lengths = tokens.astype(np.float64)
    result: FloatArray = (costs.flops_linear + costs.flops_quadratic * lengths) * lengths
    return result


class Percentiles(NamedTuple):
    """Of times in seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: FloatArray) -> Percentiles:
        return cls(*(float(value) for value in np.percentile(seconds, (50, 95, 99))))


@dataclass(frozen=True)
class LengthBucket:
    """Requests with prompts of ``from_tokens`` to ``to_tokens`` - 1 tokens (None: no limit)."""

    from_tokens: int
    to_tokens: int | None
    requests: int
    token_hit_rate: float
    flops_saved_share: float
    mean_ttft_seconds: float


@dataclass(frozen=True)
class InForce:
    """From request ``request`` on ``arm`` decides, with ``alpha`` if it has one."""

    request: int
    arm: str
    alpha: float | None

    @classmethod
    def of(cls, switch: Switch) -> InForce:
        name = switch.arm.split(":")[0].split("+")[0]
        weighs = name in PRESETS and PRESETS[name][0].kind in _WEIGHS_BY_ALPHA
        return cls(switch.request, switch.arm, switch.alpha if weighs else None)


@dataclass(frozen=True)
class Setting:
    """What was replayed.

    Attributes:
        admission: None where it plays no role.
        budget_bytes: None without limit.
        state_slots, kv_tokens: sizes of the two pools; None with one budget for all.
        ratio: of state to KV bytes that the pools were made for.
    """

    trace: str
    model: str
    policy: str
    admission: str | None
    budget_bytes: float | None
    state_slots: int | None
    kv_tokens: int | None
    ratio: float | None


@dataclass(frozen=True)
class HitFigures:
    """What follows from the hits of all requests, or of some of them.

    Attributes:
        flops_saved: FLOPs of the prefills of what was hit.
        tokens_lost_to_missing_state: KV was resident, but no state at its end.
    """

    requests: int
    input_tokens: int
    hit_tokens: int
    token_hit_rate: float
    request_hit_rate: float
    flops_saved: float
    flops_saved_share: float
    ttft: Percentiles
    by_length: tuple[LengthBucket, ...]
    tokens_lost_to_missing_state: int


@dataclass(frozen=True)
class CacheFigures:
    """What went on inside the cache, and what it held at the end.

    Attributes:
        kv_reused_share: of the KV tokens inserted, those that were part of a hit.
        states_reused_share: of the states taken, those that were hit.
        states_evicted_leaf, states_evicted_interior: with, and without, the KV up to them.
    """

    kv_reused_share: float
    states_reused_share: float
    states_evicted_leaf: int
    states_evicted_interior: int
    kv_tokens_evicted: int
    resident_states: int
    resident_kv_tokens: int


@dataclass(frozen=True)
class _Outcome:
    """What belongs neither to the hits nor to the cache.

    Attributes:
        alpha: in force at the end; None if the policy has none.
        switches: what was in force when, the start included.
        rejected: requests that did not fit and ran without the cache.
        hits: tokens reused, per request.
        matched: tokens of the prompt whose KV was resident, per request.
        ttft_seconds: per request.
    """

    alpha: float | None
    switches: tuple[InForce, ...]
    rejected: int
    hits: IntArray = field(repr=False, compare=False)
    matched: IntArray = field(repr=False, compare=False)
    ttft_seconds: FloatArray = field(repr=False, compare=False)


@dataclass(frozen=True)
class ReplayResult(_Outcome, CacheFigures, HitFigures, Setting):
    """A replay of one trace under one policy, admission and budget."""

    @classmethod
    def of(
        cls,
        load: Workload,
        setting: Setting,
        served: tuple[IntArray, IntArray, FloatArray],
        *,
        rejected: int = 0,
        cache: Cache | None = None,
        switches: tuple[InForce, ...] = (),
    ) -> ReplayResult:
        """``served``: hits, matched tokens and TTFT of each request."""
        parts: dict[str, Any] = {}
        for part in (setting, hit_figures(load, *served), cache_figures(cache)):
            parts.update(vars(part))
        hits, matched, ttft = served
        return cls(
            **parts,
            alpha=switches[-1].alpha if switches else None,
            switches=switches,
            rejected=rejected,
            hits=hits,
            matched=matched,
            ttft_seconds=ttft,
        )

    def figures_from(self, load: Workload, start: int) -> HitFigures:
        """The figures of the requests from ``start`` on alone."""
        return hit_figures(load, self.hits, self.matched, self.ttft_seconds, start)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values for JSON; without the arrays of all requests."""
        return _plain(self)


@dataclass(frozen=True)
class Bound(Setting):
    """What no replay exceeds: with this admission and budget, or (`full-kv`) with any."""

    requests: int
    token_hit_rate: float
    flops_saved: float
    flops_saved_share: float
    alpha: None = None

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values for JSON."""
        return _plain(self)


Row = ReplayResult | Bound


def hit_figures(
    load: Workload, hits: IntArray, matched: IntArray, ttft: FloatArray, start: int = 0
) -> HitFigures:
    """Of the requests from ``start`` on; the arrays have an entry for each request."""
    inputs, hits = load.tree.input_len[start:], hits[start:]
    matched, ttft = matched[start:], ttft[start:]
    saved = flops_of(load.costs, hits)
    whole = flops_of(load.costs, inputs)
    return HitFigures(
        requests=len(hits),
        input_tokens=int(inputs.sum()),
        hit_tokens=int(hits.sum()),
        token_hit_rate=_share(hits, inputs),
        request_hit_rate=float((hits > 0).mean()),
        flops_saved=float(saved.sum()),
        flops_saved_share=_share(saved, whole),
        ttft=Percentiles.of(ttft),
        by_length=_by_length(inputs, hits, saved, whole, ttft),
        tokens_lost_to_missing_state=int((np.minimum(matched, inputs - 1) - hits).sum()),
    )


def cache_figures(cache: Cache | None) -> CacheFigures:
    """Of a finished replay; None: no cache."""
    if cache is None:
        return CacheFigures(0.0, 0.0, 0, 0, 0, 0, 0)
    return CacheFigures(
        kv_reused_share=count(cache, "KV_USED") / max(1, count(cache, "KV_MADE")),
        states_reused_share=count(cache, "STATES_USED") / max(1, count(cache, "STATES_MADE")),
        states_evicted_leaf=count(cache, "LEAVES_EVICTED"),
        states_evicted_interior=count(cache, "INTERIORS_EVICTED"),
        kv_tokens_evicted=count(cache, "KV_EVICTED"),
        resident_states=count(cache, "STATES"),
        resident_kv_tokens=count(cache, "KV"),
    )


def _plain(row: Row) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for item in fields(row):
        value = getattr(row, item.name)
        if isinstance(value, Percentiles):
            value = value._asdict()
        elif isinstance(value, tuple):
            value = [asdict(entry) for entry in value]
        if not isinstance(value, np.ndarray):
            result[item.name] = value
    return result


def _share(part: NDArray[Any], whole: NDArray[Any]) -> float:
    return float(part.sum() / whole.sum())


def _by_length(
    inputs: IntArray, hits: IntArray, saved: FloatArray, whole: FloatArray, ttft: FloatArray
) -> tuple[LengthBucket, ...]:
    """Buckets that have requests, by rising length."""
    bucket_of = np.searchsorted(LENGTH_EDGES, inputs, side="right") - 1
    buckets = []
    for i in np.unique(bucket_of):
        inside = bucket_of == i
        buckets.append(
            LengthBucket(
                LENGTH_EDGES[i],
                LENGTH_EDGES[i + 1] if i + 1 < len(LENGTH_EDGES) else None,
                requests=int(inside.sum()),
                token_hit_rate=_share(hits[inside], inputs[inside]),
                flops_saved_share=_share(saved[inside], whole[inside]),
                mean_ttft_seconds=float(ttft[inside].mean()),
            )
        )
    return tuple(buckets)

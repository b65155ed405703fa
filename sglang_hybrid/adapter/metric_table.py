"""Every metric of the cache: name, labels, meaning, and where its value comes from.

`metrics` exports the table to Prometheus; the documentation shows it. Nothing here
needs prometheus-client or SGLang.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sglang_hybrid.adapter import short_hits
from sglang_hybrid.adapter.timing import SECTIONS
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.decider import Reason

PREFIX = "sglang:hybrid_"
"""SGLang's own prefix, and ours."""

KINDS = tuple(kind.name.lower() for kind in Kind)
PROCESS_STATES = ("off", "starting", "running", "failed")
SWITCH_REASONS: tuple[str, ...] = get_args(Reason)

Values = Mapping[tuple[str, ...], float]
"""Value by the values of a metric's own labels."""


@dataclass(frozen=True)
class Snapshot:
    """What the cache shows at one moment.

    Attributes:
        counters: `Counters.as_dict`.
        live: live checkpoints by kind.
        state_bytes: bytes of one checkpoint on this rank.
        short_hits: `ShortHits.as_dict`.
        record: requests in the record of requests, and the bytes that it takes.
        tuning: status of the tuner; None while the policy is fixed.
        parts: `Guards.status`.
        host: checkpoints whose only copy is in host memory.
    """

    counters: Mapping[str, float]
    live: Mapping[str, int]
    state_bytes: int
    short_hits: Mapping[str, Mapping[str, int]]
    record: tuple[int, int] = (0, 0)
    tuning: Mapping[str, Any] | None = None
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    host: int = 0


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: without `PREFIX`, and without the ``_total`` of a counter.
        kind: its Prometheus type.
        meaning: one line; the unit is in the name.
        advice: how to read it, and what to do.
        read: its values.
        labels: names of its own labels, beside those of SGLang.
        gone: value of a gauge for labels that `read` no longer gives; a series cannot be
            taken back from Prometheus.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    advice: str
    read: Callable[[Snapshot], Values]
    labels: tuple[str, ...] = ()
    gone: float = math.nan

    @property
    def family(self) -> str:
        """As it is declared to Prometheus."""
        return PREFIX + self.name

    @property
    def exported(self) -> str:
        """As it is written in a query."""
        return self.family + {"counter": "_total", "histogram": "_bucket"}.get(self.kind, "")


def _counter(key: str) -> Callable[[Snapshot], Values]:
    return lambda seen: {(): seen.counters[key]}


def _by_kind(suffix: str) -> Callable[[Snapshot], Values]:
    return lambda seen: {(kind,): seen.counters[f"{kind}_{suffix}"] for kind in KINDS}


def _skipped(seen: Snapshot) -> Values:
    counters = seen.counters
    return {
        ("no_slot",): counters["skipped_checkpoints"],
        ("declined",): counters["declined_checkpoints"],
        ("never",): counters["unwanted_checkpoints"],
        ("min_gain",): seen.short_hits[short_hits.Reason.MIN_GAIN]["requests"],
    }


def _evictions(seen: Snapshot) -> Values:
    counters = seen.counters
    return {
        ("state", "leaf"): counters["evicted_state_leaves"],
        ("state", "interior"): counters["evicted_state_interiors"],
        ("kv", "leaf"): counters["evicted_leaves"],
    }


def _short(key: str) -> Callable[[Snapshot], Values]:
    return lambda seen: {
        (label(reason),): values[key] for reason, values in seen.short_hits.items()
    }


def label(reason: str) -> str:
    """A reason as a label's value."""
    return str(reason).replace(" ", "_")


def _host_states(seen: Snapshot) -> Values:
    counters = seen.counters
    return {
        ("copied",): counters["copied_states"],
        ("demoted",): counters["demoted_states"],
        ("reloaded",): counters["reloaded_states"],
        ("declined",): counters["missed_reloads"],
        ("evicted",): counters["host_evicted_states"],
    }


def _tuning(key: str) -> Callable[[Snapshot], Values]:
    def read(seen: Snapshot) -> Values:
        value = None if seen.tuning is None else seen.tuning.get(key)
        return {} if value is None else {(): float(value)}

    return read


def _arm(seen: Snapshot) -> Values:
    tuning = seen.tuning or {}
    return {(tuning["arm"], str(tuning.get("policy"))): 1.0} if tuning.get("arm") else {}


def _switches(seen: Snapshot) -> Values:
    if not seen.tuning:
        return {}
    counts = {**dict.fromkeys(SWITCH_REASONS, 0), **seen.tuning.get("switches", {})}
    return {(reason,): count for reason, count in counts.items()}


def _scores(seen: Snapshot) -> Values:
    scores = (seen.tuning or {}).get("scores") or {}
    return {(arm,): score for arm, score in scores.items()}


def _process(seen: Snapshot) -> Values:
    state = (seen.tuning or {}).get("process", "off")
    return {(each,): float(each == state) for each in PROCESS_STATES}


def _parts(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Snapshot], Values]:
    return lambda seen: {(name,): value(part) for name, part in seen.parts.items()}


METRICS: tuple[Metric, ...] = (
    Metric(
        "requests",
        "counter",
        "Requests admitted to prefill; a retracted request counts again.",
        "The base of every rate per request.",
        _counter("requests"),
    ),
    Metric(
        "prompt_tokens",
        "counter",
        "Tokens of their prompts.",
        "The denominator of the token hit rate.",
        _counter("prompt_tokens"),
    ),
    Metric(
        "hit_tokens",
        "counter",
        "Tokens of these that were not computed.",
        "Divide its rate by that of the prompt tokens: the token hit rate.",
        _counter("hit_tokens"),
    ),
    Metric(
        "lost_tokens",
        "counter",
        "Tokens whose KV was cached beyond the hit, and that were computed for want of a state.",
        "High against the hit tokens: look at the reasons of short requests.",
        _counter("lost_tokens"),
    ),
    Metric(
        "prompt_flops",
        "counter",
        "FLOPs to prefill the prompts from nothing, on one rank.",
        "The denominator of the share of computation that is saved.",
        _counter("prompt_flops"),
    ),
    Metric(
        "saved_flops",
        "counter",
        "FLOPs of these that hits saved.",
        "What the policies maximise; long prefixes weigh more than in the token hit rate.",
        _counter("saved_flops"),
    ),
    Metric(
        "hits",
        "counter",
        "Requests that started from a checkpoint, by its kind.",
        "A kind that is taken often and never hit is not worth its slots; the others are.",
        _by_kind("hits"),
        ("kind",),
    ),
    Metric(
        "short_requests",
        "counter",
        "Admitted requests by what ended their hit; full: nothing was missing.",
        "See [short hits](#why-a-hit-is-short).",
        _short("requests"),
        ("reason",),
    ),
    Metric(
        "short_tokens",
        "counter",
        "Tokens that could have been hit and were not, by reason.",
        "The largest reason is the one to act on.",
        _short("tokens"),
        ("reason",),
    ),
    Metric(
        "checkpoints",
        "gauge",
        "Live checkpoints, by kind.",
        "Their sum is bounded by the pool's slots less those of running requests.",
        lambda seen: {(kind,): seen.live[kind] for kind in KINDS},
        ("kind",),
    ),
    Metric(
        "checkpoint_bytes",
        "gauge",
        "Memory of the live checkpoints on one rank, by kind.",
        "Against the KV in use it tells how the memory is divided.",
        lambda seen: {(kind,): seen.live[kind] * seen.state_bytes for kind in KINDS},
        ("kind",),
    ),
    Metric(
        "checkpoints_taken",
        "counter",
        "Checkpoints taken, by kind.",
        "Against the hits of the kind: what admission earns.",
        _by_kind("checkpoints"),
        ("kind",),
    ),
    Metric(
        "checkpoints_skipped",
        "counter",
        "Checkpoints not taken: no_slot (all in use), declined (worth less than what it would "
        "displace), never (configuration), min_gain (too close to the hit).",
        "no_slot grows: more slots or fewer running requests. The others are harmless.",
        _skipped,
        ("reason",),
    ),
    Metric(
        "evictions",
        "counter",
        "Evictions by the pool that was short, state or kv, and by the place: leaf (the last of "
        "its path), interior (checkpoints follow).",
        "Pool state: more slots; pool kv: a lower --mamba-full-memory-ratio.",
        _evictions,
        ("pool", "place"),
    ),
    Metric(
        "evicted_states",
        "counter",
        "Checkpoints evicted, for either pool.",
        "About as many as requests while hits are few: the pool is too small.",
        _counter("evicted_states"),
    ),
    Metric(
        "evicted_unused",
        "counter",
        "Checkpoints evicted before any request hit them, and not kept on the host.",
        "Nearly all of the evicted ones: the pool holds each for too short a time.",
        _counter("evicted_unused"),
    ),
    Metric(
        "host_checkpoints",
        "gauge",
        "Checkpoints of which only a copy in host memory is left (--enable-hierarchical-cache).",
        "Those on the device are not counted here, though the host may have a copy of them.",
        lambda seen: {(): seen.host},
    ),
    Metric(
        "host_states",
        "counter",
        "States by what the host tier did with them: copied (to the host), demoted (evicted from "
        "the device, while the host has a copy), reloaded (for a request that starts from them), "
        "declined (not reloaded, for want of room on the device), evicted (the host's only copy).",
        "demoted grows and reloaded does not: what goes to the host never comes back. evicted "
        "near demoted: a larger --hicache-size. declined: more slots or fewer running requests.",
        _host_states,
        ("event",),
    ),
    Metric(
        "prefill_passes",
        "counter",
        "Forwards that computed a part of a prompt, per request.",
        "Over the requests: how often prefills go on in another pass, by chunks or cuts.",
        _counter("prefill_passes"),
    ),
    Metric(
        "rounded_checkpoints",
        "counter",
        "Checkpoints taken at the page boundary before the wanted token.",
        "Many: a smaller --page-size hits deeper.",
        _counter("rounded_checkpoints"),
    ),
    Metric(
        "unwritten_checkpoints",
        "counter",
        "Checkpoints dropped because the forward did not write their state.",
        "Grows: prefill runs from a graph that captured the state layers; set branch_checkpoint "
        "to split.",
        _counter("unwritten_checkpoints"),
    ),
    Metric(
        "branch_cuts",
        "counter",
        "Prefills cut at a wanted checkpoint (branch_checkpoint split).",
        "One per such checkpoint.",
        _counter("branch_cuts"),
    ),
    Metric(
        "branch_waits",
        "counter",
        "Times a request waited a round for another's cut (branch_checkpoint split).",
        "Large against the requests: branch_checkpoint exact avoids the wait.",
        _counter("branch_waits"),
    ),
    Metric(
        "slot_waits",
        "counter",
        "Times a request was not admitted for want of state slots.",
        "Grows: raise --max-mamba-cache-size or lower --max-running-requests.",
        _counter("slot_waits"),
    ),
    Metric(
        "missed_copies",
        "counter",
        "Hits given up because no slot could be had for the copy of the state.",
        "Should stay at 0; as for slot_waits.",
        _counter("missed_copies"),
    ),
    Metric(
        "arm_info",
        "gauge",
        "1 for the arm in force (policy, alpha, admission), 0 for those before it.",
        "Changes often: the arms are about equally good, or the load changes.",
        _arm,
        ("arm", "policy"),
        gone=0.0,
    ),
    Metric(
        "alpha",
        "gauge",
        "Alpha in force; absent while the policy is fixed or takes none.",
        "Higher weighs saved computation more, 0 orders by recency alone.",
        _tuning("alpha"),
    ),
    Metric(
        "switches",
        "counter",
        "Changes of the arm in force: better (it scored higher), guard (back to a safe one), "
        "tuned (found by the search after the bootstrap window).",
        "guard grows: predictions do not hold on this load; a fixed policy is worth a try.",
        _switches,
        ("reason",),
    ),
    Metric(
        "arm_score_flops",
        "gauge",
        "FLOPs that each arm's shadow cache saved lately, decayed.",
        "How far the arms are apart; all equal: memory is ample, or nothing is shared.",
        _scores,
        ("arm",),
    ),
    Metric(
        "windows",
        "counter",
        "Windows of requests that the shadows scored.",
        "Stands still under load: the tuner is not running.",
        _tuning("windows"),
    ),
    Metric(
        "dropped_windows",
        "counter",
        "Windows that the shadows had no time for.",
        "Grows: the tuner has too little processor; it chooses on less evidence.",
        _tuning("dropped_windows"),
    ),
    Metric(
        "backlog",
        "gauge",
        "Requests that wait for the shadows.",
        "Grows without end: as for dropped_windows.",
        _tuning("backlog"),
    ),
    Metric(
        "tuner_process",
        "gauge",
        "1 for the state in which the tuner's process is: off, starting, running, failed.",
        "failed: the server goes on with the arm in force; the log tells why.",
        _process,
        ("state",),
    ),
    Metric(
        "tuner_failures",
        "counter",
        "Failures of the tuner's process.",
        "Should stay at 0; the log tells why.",
        _tuning("failures"),
    ),
    Metric(
        "tuner_stalls",
        "counter",
        "Times the tuner did not answer in time.",
        "Grows: as for dropped_windows.",
        _tuning("stalls"),
    ),
    Metric(
        "predicted_flops",
        "counter",
        "FLOPs that the shadow of the arm in force saved.",
        "Compare with realised_flops.",
        _tuning("predicted_flops"),
    ),
    Metric(
        "realised_flops",
        "counter",
        "FLOPs that the cache saved on the same requests.",
        "Far below predicted_flops: concurrency or the pools keep the cache from what the "
        "shadow can do.",
        _tuning("realised_flops"),
    ),
    Metric(
        "agreement_ratio",
        "gauge",
        "Realised over predicted FLOPs, decayed; absent until known.",
        "Near 1: scores can be trusted.",
        _tuning("agreement"),
    ),
    Metric(
        "record_requests",
        "gauge",
        "Requests in the record that `hybrid-marconi record` writes.",
        "At most the key record_requests.",
        lambda seen: {(): seen.record[0]},
    ),
    Metric(
        "record_bytes",
        "gauge",
        "Memory of that record.",
        "Lower the key record_requests if it is too much.",
        lambda seen: {(): seen.record[1]},
    ),
    Metric(
        "part_failures",
        "counter",
        "Failures inside a part of the cache (order, saving, history, tuning, lead), which cost "
        "hits only.",
        "Should stay at 0; the log tells why. Please report it.",
        _parts(lambda part: part["failures"]),
        ("part",),
    ),
    Metric(
        "part_off",
        "gauge",
        "1 for a part that is off because it failed.",
        "The server goes on without it until it is restarted.",
        _parts(lambda part: float(not part["is_on"])),
        ("part",),
    ),
    Metric(
        "scheduler_seconds",
        "histogram",
        "Time of the scheduler in the cache's steps, per call: " + ", ".join(SECTIONS) + ". "
        "SGLang's part of a step that the cache extends is included.",
        "Its rate is the share of one processor; above 0.05 report it.",
        lambda seen: {},
        ("section",),
    ),
)


def markdown_table() -> str:
    """The table of metrics, as the documentation shows it."""
    lines = ["| Metric | Type | Labels | Meaning | What to do |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{name}`" for name in metric.labels) or "-"
        lines.append(
            f"| `{metric.exported}` | {metric.kind} | {labels} | {metric.meaning} "
            f"| {metric.advice} |"
        )
    return "\n".join(lines) + "\n"

"""Losses of the policies, and the learned density, as docs/simulator.md states them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.sim.policy_spec import PolicySpec

BUCKETED = ("lru", "utility", "marconi")


@dataclass
class Candidate:
    """What a policy may know of a state, read off the live tree."""

    depth: int
    last: int
    hits: int
    saved: float
    freed: float
    superseded: bool
    segment: int  # tokens to the live ancestor
    base: float = 0.0  # gdsf
    longest: int = 0  # tlru: longest sequence seen through this depth
    density: float = 0.0
    position: Any = None  # for the caller


def weight(policy: PolicySpec, c: Candidate) -> float:
    if policy.kind == "utility":
        value = policy.alpha * math.log(c.saved / c.freed)
        if c.hits:
            value += 0.5 * math.log1p(c.hits)
        return value + math.log(0.1) if c.superseded else value
    if policy.kind == "marconi":
        return math.log(c.saved / c.freed)
    if policy.kind == "gdsf":
        return (1 + c.hits) * (c.saved if policy.cost == "flops" else 1.0) / c.freed
    if policy.kind == "seglen":
        return float(c.segment)
    if policy.kind == "tlru":
        return float(c.longest - (c.depth - c.segment))
    return 0.0


def min_max(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def losses(policy: PolicySpec, compared: Sequence[Candidate], now: int) -> list[Any]:
    """A number, or a pair for tlru, for each of the compared candidates."""
    weights = [weight(policy, c) for c in compared]
    last = [c.last for c in compared]
    ages = [now - c.last for c in compared]
    if policy.kind == "lru":
        return last
    if policy.kind == "utility":
        return [w - math.log(age) for w, age in zip(weights, ages, strict=True)]
    if policy.kind == "marconi":
        if policy.recency == "linear":
            oldest = min(last)
            recency = [(value - oldest) / (now - oldest) for value in last]
        else:
            recency = min_max([1 / age for age in ages])
        lowest, highest = math.exp(min(weights)), math.exp(max(weights))
        gain = policy.alpha / (highest - lowest) if highest - lowest > 0 else 0.0
        return [
            near + (math.exp(w) - lowest) * gain for near, w in zip(recency, weights, strict=True)
        ]
    if policy.kind == "gdsf":
        return [c.base + w for c, w in zip(compared, weights, strict=True)]
    if policy.kind == "seglen":
        return [
            policy.weight * length + (1 - policy.weight) * near
            for length, near in zip(min_max(weights), min_max(last), strict=True)
        ]
    if policy.kind == "tlru":
        return [(w > policy.threshold, value) for w, value in zip(weights, last, strict=True)]
    if policy.kind == "density":
        return [c.density * (c.saved / c.freed) for c in compared]
    raise NotImplementedError(policy.kind)


def pick(policy: PolicySpec, candidates: Sequence[Candidate], now: int) -> tuple[Any, Candidate]:
    """Loss and candidate of the victim."""
    compared = list(candidates)
    if policy.bucket_width > 0 and policy.kind in BUCKETED:
        buckets: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            bucket = math.floor(weight(policy, candidate) / policy.bucket_width)
            buckets.setdefault(bucket, []).append(candidate)
        compared = [min(b, key=lambda c: (c.last, c.depth)) for b in buckets.values()]
    order = [
        (loss, c.last, c.depth, i)
        for i, (loss, c) in enumerate(zip(losses(policy, compared, now), compared, strict=True))
    ]
    loss, _, _, index = min(order)
    return loss, compared[index]


BINS = 64
AGE = [2.0 ** (b / 4) for b in range(BINS + 1)]
PRIOR = [1 / (2 * AGE[b]) for b in range(BINS)]
STRENGTH = 1.0
MASK = 2**64 - 1


class Density:
    """Hits per unit of time, by class and age, learned from hits and evictions."""

    def __init__(self, seed: int) -> None:
        self.random = seed
        self.states: list[Any] = []  # all live ones, in the order that the draws index
        self.events = 0
        self.hits = {c: [0.0] * BINS for c in range(72)}
        self.ends = {c: [0.0] * BINS for c in range(72)}
        self.pool_hits = {p: [0.0] * BINS for p in range(12)}
        self.pool_ends = {p: [0.0] * BINS for p in range(12)}
        self.density = {c: list(PRIOR) for c in range(72)}

    def append(self, state: Any) -> None:
        self.states.append(state)

    def remove(self, state: Any) -> None:
        place = next(i for i, other in enumerate(self.states) if other is state)
        self.states[place] = self.states[-1]
        self.states.pop()

    @staticmethod
    def class_and_pool(state: Any, is_leaf: bool) -> tuple[int, int]:
        stage = (0 if is_leaf else 1) * 3 + min(state.hits, 2)
        code = {Kind.DECODE_END: 0, Kind.BRANCH: 1, Kind.PROMPT_END: 2}.get(state.kind, 3)
        return stage * 12 + code * 3 + state.turn, stage * 2 + (state.kind == Kind.BRANCH)

    @staticmethod
    def bin_of(age: int) -> int:
        return min(BINS - 1, math.floor(4 * math.log2(max(1, age))))

    def of(self, state: Any, is_leaf: bool, now: int) -> float:
        return self.density[self.class_and_pool(state, is_leaf)[0]][self.bin_of(now - state.last)]

    def event(self, state: Any, is_leaf: bool, now: int, is_hit: bool) -> None:
        group, pool = self.class_and_pool(state, is_leaf)
        counts, pool_counts = (self.hits, self.pool_hits) if is_hit else (self.ends, self.pool_ends)
        counts[group][self.bin_of(now - state.last)] += 1
        pool_counts[pool][self.bin_of(now - state.last)] += 1
        self.events += 1
        if self.events % 32 == 0:
            self.learn()
        if self.events % 512 == 0:
            for table in (self.hits, self.ends, self.pool_hits, self.pool_ends):
                for key, row in table.items():
                    table[key] = [0.9 * value for value in row]

    def learn(self) -> None:
        for group in range(72):
            stage, code = group // 12, group % 12 // 3
            pool = stage * 2 + (code == 1)
            hits, rest = suffixes(self.pool_hits[pool], self.pool_ends[pool])
            wide = [(hits[b] + STRENGTH) / (rest[b] + STRENGTH / PRIOR[b]) for b in range(BINS)]
            hits, rest = suffixes(self.hits[group], self.ends[group])
            self.density[group] = [
                (hits[b] + STRENGTH) / (rest[b] + STRENGTH / wide[b]) for b in range(BINS)
            ]

    def draws(self, is_candidate: Any) -> list[Any]:
        """States drawn that are candidates; none if none was met."""
        drawn: list[Any] = []
        for _ in range(256):
            if len(drawn) == 32 or not self.states:
                break
            state = self.states[((self.next_random() >> 32) * len(self.states)) >> 32]
            if is_candidate(state):
                drawn.append(state)
        return drawn

    def next_random(self) -> int:
        """SplitMix64."""
        self.random = (self.random + 0x9E3779B97F4A7C15) & MASK
        value = self.random
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        return value ^ (value >> 31)


def suffixes(hits: list[float], ends: list[float]) -> tuple[list[float], list[float]]:
    """H_b and R_b: hits at or beyond bin b, and time still to be spent from it on."""
    H, N, R = [0.0] * BINS, [0.0] * BINS, [0.0] * BINS
    last = BINS - 1
    H[last], N[last] = hits[last], hits[last] + ends[last]
    R[last] = N[last] * 0.5 * (AGE[BINS] - AGE[last])
    for b in range(last - 1, -1, -1):
        span = AGE[b + 1] - AGE[b]
        H[b] = H[b + 1] + hits[b]
        N[b] = N[b + 1] + (hits[b] + ends[b])
        R[b] = R[b + 1] + N[b + 1] * span + (N[b] - N[b + 1]) * 0.5 * span
    return H, R

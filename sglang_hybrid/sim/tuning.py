"""Strategies: a fixed policy, or one that tunes itself while the trace is replayed.

`marconi:alpha=tuned` is the paper's tuner: LRU until the first eviction, a bootstrap window,
one replay of it per alpha, the best alpha from then on. `auto` runs one shadow
cache per arm with every request and puts the arm in force that saves most.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.decider import Decider
from sglang_hybrid.sim.admission import Admission, parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PRESETS, PolicySpec, parse_policy
from sglang_hybrid.sim.replay import ConcurrentReplay, SerialReplay, count, switch
from sglang_hybrid.sim.union_tree import UnionTree

ALPHAS = (0.0, *(round(0.1 * i, 1) for i in range(1, 11)), 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 12, 16)
"""The grid of the bootstrap tuner: 21 values."""


ASKED = "asked"
"""Stands for the replay's admission without states that nobody asked for."""


@dataclass(frozen=True)
class Arm:
    """What `auto` can choose: a policy, and how states are admitted.

    Attributes:
        policy: orders the victims.
        admission: None: that of the replay; `ASKED`: that without first victims.
    """

    policy: PolicySpec
    admission: Admission | str | None = None

    @property
    def name(self) -> str:
        if self.admission is None:
            return self.policy.name
        of = self.admission if isinstance(self.admission, str) else self.admission.name
        return f"{self.policy.name}+{of}"

    def admits(self, base: Admission) -> Admission:
        """The arm's admission in a replay whose admission is ``base``."""
        if self.admission is None:
            return base
        if isinstance(self.admission, Admission):
            return self.admission
        if not base.first_victims:
            return base
        return replace(base, prompt_end=0, chunk_tokens=0, first_victims=False)


@dataclass(frozen=True)
class Auto:
    """Persistent shadow caches, one per arm; the best one's rules are in force (`Decider`).

    With an arm `lru`, an arm that saves less than that falls back to it.

    Attributes:
        name: as given by the user.
        arms: the first one starts.
        period: requests between decisions.
        decay: of the scores (FLOPs saved), per period.
        margin: another arm must be better by this share.
    """

    name: str
    arms: tuple[Arm, ...]
    period: int = 100
    decay: float = 0.8
    margin: float = 0.02


@dataclass(frozen=True)
class Tuned:
    """Marconi with alpha tuned once, on a bootstrap window (section 4.2 of the paper).

    Attributes:
        window: length of the bootstrap window, in multiples of the requests before the first
            eviction (the paper: 5 to 15).
    """

    name: str
    policy: PolicySpec
    alphas: tuple[float, ...] = ALPHAS
    window: int = 5


Strategy = PolicySpec | Auto | Tuned


@dataclass(frozen=True)
class Switch:
    """From request ``request`` on ``arm`` is in force, which weighs efficiency by ``alpha``."""

    request: int
    arm: str
    alpha: float


Replay = SerialReplay | ConcurrentReplay


@dataclass(frozen=True)
class Replayed:
    """A finished replay and what was in force when."""

    replay: Replay
    switches: tuple[Switch, ...]


_AUTO = (
    "density",
    "utility:alpha=0.5",
    "lru",
    "utility:alpha=0.25",
    "utility:alpha=1",
    "marconi:alpha=0.1",
    "marconi:alpha=0.5",
    "marconi:alpha=2",
)


def default_arms() -> tuple[Arm, ...]:
    """The arms of `auto`: each policy with and without first victims.

    So it never takes a state that the replay's admission would not take.
    """
    policies = [parse_policy(name) for name in _AUTO]
    return tuple(Arm(policy, own) for own in (None, ASKED) for policy in policies)


def parse_strategy(text: str) -> Strategy:
    """A policy (`utility:alpha=0.5`), `marconi:alpha=tuned`, or `auto[:ARM/ARM...]`.

    An arm is a policy, POLICY+ADMISSION, or POLICY+asked (without first victims).

    Raises:
        ValueError: names the value and what is allowed.
    """
    name, _, rest = text.partition(":")
    if name == "auto":
        arms = tuple(_arm(part) for part in rest.split("/")) if rest else default_arms()
        return Auto(text, arms)
    if name.startswith("marconi") and "alpha=tuned" in rest.split(":"):
        others = [option for option in rest.split(":") if option != "alpha=tuned"]
        window = Tuned.window
        for option in others:
            if option.startswith("window="):
                window = _window(text, option.removeprefix("window="))
        kept = [option for option in others if not option.startswith("window=")]
        return Tuned(text, parse_policy(":".join([name, *kept])), window=window)
    if name not in PRESETS:
        known = ["auto", *PRESETS]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown policy {name!r}; allowed: {', '.join(known)}{hint}")
    return parse_policy(text)


def _arm(text: str) -> Arm:
    policy, _, admission = text.partition("+")
    if admission in ("", ASKED):
        return Arm(parse_policy(policy), admission or None)
    return Arm(parse_policy(policy), parse_admission(admission))


def _window(text: str, value: str) -> int:
    if not value.isdigit() or not 1 <= int(value) <= 1000:
        raise ValueError(
            f"policy {text!r}: window = {value!r} is not allowed; allowed: an integer, 1 to 1000"
        )
    return int(value)


MakeReplay = Callable[[PolicySpec, Admission], Replay]


def run(
    tree: UnionTree,
    costs: ModelCosts,
    strategy: Strategy,
    admission: Admission,
    budget: Budget | None,
    make: MakeReplay | None = None,
) -> Replayed:
    """Replay a trace under ``strategy``.

    Args:
        make: builds the replay, given the policy and admission that start; serial by
            default. Shadows are always serial.
    """

    def serial(policy: PolicySpec, admission: Admission) -> SerialReplay:
        return SerialReplay(tree, costs, policy, admission, budget)

    build = make or serial
    requests = len(tree.input_len)
    if isinstance(strategy, Tuned):
        return _run_tuned(strategy, costs, admission, build, serial, requests)
    if isinstance(strategy, Auto):
        return _run_auto(strategy, costs, admission, build, serial, requests)
    replay = build(strategy, admission)
    replay.advance(requests)
    return Replayed(replay, (Switch(0, strategy.name, strategy.alpha),))


def saved_flops(costs: ModelCosts, hits: NDArray[np.int64]) -> float:
    """FLOPs that hits of so many tokens save, in all."""
    lengths = hits.astype(np.float64)
    return float(((costs.flops_linear + costs.flops_quadratic * lengths) * lengths).sum())


def _run_tuned(
    tuned: Tuned,
    costs: ModelCosts,
    admission: Admission,
    build: MakeReplay,
    serial: Callable[[PolicySpec, Admission], SerialReplay],
    requests: int,
) -> Replayed:
    start = replace(tuned.policy, alpha=0.0)
    replay = build(start, admission)
    switches = [Switch(0, tuned.policy.kind, 0.0)]
    while replay.position < requests and count(replay.cache, "FIRST_EVICTION") < 0:
        replay.advance(min(requests, replay.position + 16))
    first = count(replay.cache, "FIRST_EVICTION")
    # At least one request beyond the first eviction, or there would be nothing to learn from.
    end = max(first + 1, tuned.window * first)
    if first < 0 or end >= requests:
        replay.advance(requests)
        return Replayed(replay, tuple(switches))
    replay.advance(max(end, replay.position))
    alpha = best_alpha(tuned.alphas, replay.position, costs, start, admission, serial)
    switch(replay.cache, replace(tuned.policy, alpha=alpha), admission)
    switches.append(Switch(replay.position, tuned.policy.kind, alpha))
    replay.advance(requests)
    return Replayed(replay, tuple(switches))


def best_alpha(
    alphas: Sequence[float],
    stop: int,
    costs: ModelCosts,
    policy: PolicySpec,
    admission: Admission,
    serial: Callable[[PolicySpec, Admission], SerialReplay],
) -> float:
    """The alpha that saves most FLOPs over the first ``stop`` requests; ties: the smaller."""
    best, most = alphas[0], -1.0
    for alpha in sorted(alphas):
        trial = serial(replace(policy, alpha=alpha), admission)
        trial.advance(stop)
        saved = saved_flops(costs, trial.served.hits[:stop])
        if saved > most:
            best, most = alpha, saved
    return best


def _run_auto(
    auto: Auto,
    costs: ModelCosts,
    admission: Admission,
    build: MakeReplay,
    serial: Callable[[PolicySpec, Admission], SerialReplay],
    requests: int,
) -> Replayed:
    arms = different_arms(auto.arms, admission)
    admissions = [arm.admits(admission) for arm in arms]
    shadows = [serial(arm.policy, own) for arm, own in zip(arms, admissions, strict=True)]
    names = [arm.name for arm in arms]
    decider = Decider(
        names,
        0,
        names.index("lru") if "lru" in names else None,
        margin=auto.margin,
        decay=auto.decay,
    )
    replay = build(arms[0].policy, admissions[0])
    switches = [Switch(0, arms[0].name, arms[0].policy.alpha)]
    for start in range(0, requests, auto.period):
        stop = min(requests, start + auto.period)
        replay.advance(stop)
        for shadow in shadows:
            shadow.advance(stop)
        choice = decider.update(
            [saved_flops(costs, shadow.served.hits[start:stop]) for shadow in shadows]
        )
        if choice is None or stop == requests:
            continue
        arm, shadow = arms[choice.arm], shadows[choice.arm]
        if arm.policy.kind == "density":
            # What the shadow has learned while it was not in force.
            for mine, learned in zip(replay.cache.table, shadow.cache.table, strict=True):
                mine[:] = learned
        switch(replay.cache, arm.policy, admissions[choice.arm])
        switches.append(Switch(stop, arm.name, arm.policy.alpha))
    return Replayed(replay, tuple(switches))


def different_arms(arms: Iterable[Arm], admission: Admission) -> list[Arm]:
    """The arms that are not the same as an earlier one under ``admission``."""
    seen = set()
    kept = []
    for arm in arms:
        rules = arm.policy, arm.admits(admission)
        if rules not in seen:
            seen.add(rules)
            kept.append(arm)
    return kept

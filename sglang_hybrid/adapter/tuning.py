"""The rules in force: which policy, which alpha, and whether unasked-for states are kept.

One rank of a replica sends windows of request records to the shadow caches (see
`sglang_hybrid.shadow`), hears what every arm would have saved and decides; the decision
travels in the request broadcast (`decisions`) and every rank puts it in force at the same
operation. Nothing here waits: if the shadow process is slow or gone, what is in force stays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.utils.rank_consensus_checker import assert_same

from sglang_hybrid.adapter.decisions import Decision
from sglang_hybrid.adapter.guards import guarded, nothing
from sglang_hybrid.config import CacheConfig
from sglang_hybrid.core.decider import Choice, Decider
from sglang_hybrid.core.policy_names import make_policy
from sglang_hybrid.core.tuner import Bootstrap
from sglang_hybrid.shadow.arms import arms_for, bootstrap_arms, lru_index
from sglang_hybrid.shadow.client import ShadowClient
from sglang_hybrid.shadow.messages import Report, Settings, table_from_bytes
from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.served import admission_of
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.tuning import Arm

if TYPE_CHECKING:
    from sglang_hybrid.adapter.cache import HybridMarconiCache

logger = logging.getLogger(__name__)

_FADING = 0.8
"""Of predicted and realised savings in `agreement`, per window."""


class Tuning:
    """Puts one of several arms in force.

    Args:
        cache: whose rules are tuned.
        arms: what can be in force; the first one is at the start.
        client: to the shadow caches, on the rank that decides; None on the others.
    """

    def __init__(
        self, cache: HybridMarconiCache, arms: tuple[Arm, ...], client: ShadowClient | None
    ) -> None:
        self._cache, self.arms, self._client = cache, arms, client
        self.guard, self._lead = cache.guards.tuning, cache.guards.lead
        self._lead.when_off = self.close
        self.in_force = self._announced = 0
        self.switches: dict[str, int] = {}
        self._due: list[Decision] = []
        self._decider = _decider(cache.config, arms)
        self._predicted = self._realised = 0.0
        self._recent_predicted = self._recent_realised = 0.0
        self._failures = 0
        self._start_over()
        if client is not None:
            client.start()

    @classmethod
    def of(cls, cache: HybridMarconiCache, chunk_tokens: int, *, decides: bool) -> Tuning:
        """The tuner that ``cache``'s configuration asks for.

        Args:
            chunk_tokens: of a prefill chunk, 0 where prefill is not chunked.
            decides: whether this rank is the one that decides.
        """
        config = cache.config
        admission = admission_of(config, cache.checkpoint_grid, chunk_tokens)
        is_bootstrap = config.tuner == "bootstrap"
        arms = bootstrap_arms() if is_bootstrap else arms_for(config.policy, admission)
        client = None
        if decides:
            client = ShadowClient(
                Settings(
                    cache.view.costs,
                    admission,
                    _pools(cache),
                    arms,
                    config.objective,
                    is_bootstrap=is_bootstrap,
                )
            )
        return cls(cache, arms, client)

    def _start_over(self) -> None:
        """The cache is empty."""
        self._requests, self._before_eviction = 0, None
        self._evicted_earlier = self._cache.counters.evicted_states

    # ---- on the rank that decides ----

    @guarded(nothing, by="_lead")
    def count_request(self) -> None:
        """A request was recorded."""
        self._requests += 1
        evicted = self._cache.counters.evicted_states > self._evicted_earlier
        if evicted and self._before_eviction is None:
            self._before_eviction = self._requests - 1

    @guarded(nothing, by="_lead")
    def record(self, window: Window) -> None:
        """A window of requests was served."""
        if self._client is None:
            return
        self._client.send(window)
        if isinstance(self._decider, Bootstrap) and self._decider.observe(
            self._requests, self._before_eviction
        ):
            self._search()

    def _search(self) -> None:
        assert self._client is not None
        self._failures = self._client.failures
        if not self._client.search():
            self._decider.reset()  # there is nobody to ask; the next window asks again

    @guarded(lambda _: [], by="_lead")
    def pending(self) -> list[Decision]:
        """Decisions that follow from what the shadow caches have reported by now."""
        if self._client is None:
            return []
        reports = self._client.poll()
        # Asked in every pass of the event loop, also of an idle one: nearly always nothing.
        if not reports and self._client.failures == self._failures:
            return []
        return self.decide(reports)

    def decide(self, reports: list[Report]) -> list[Decision]:
        """What follows from ``reports``, if anything, on the rank that decides."""
        assert self._client is not None
        decision = None
        if self._client.failures != self._failures:
            # A search that was under way is lost with its process.
            self._failures = self._client.failures
            if isinstance(self._decider, Bootstrap):
                self._decider.reset()
        for report in reports:
            if isinstance(self._decider, Bootstrap) != report.is_search:
                continue  # a window that was only collected
            try:
                self._count(report)
                choice = self._decider.update(report.saved)
            except (ValueError, IndexError) as error:
                # It names what is wrong; a scheduler that serves must not end over it.
                logger.warning("hybrid-marconi: a report of the shadow process is void: %s", error)
                continue
            if choice is not None:
                decision = self._decision(choice, report)
        # Of several windows at once, as after a pause of the process, the last one counts.
        if decision is None or decision.arm == self._announced:
            return []
        self._announced = decision.arm
        return [decision]

    def _decision(self, choice: Choice, report: Report) -> Decision:
        # The next operation: no rank is further than this one, which broadcasts.
        at = self._cache.view.clock + 1
        return Decision(at, choice.arm, choice.reason, choice.text, report.tables.get(choice.arm))

    def _count(self, report: Report) -> None:
        if report.is_search:
            return
        predicted, realised = report.saved[self.in_force], report.realised
        self._predicted += predicted
        self._realised += realised
        self._recent_predicted = self._recent_predicted * _FADING + predicted
        self._recent_realised = self._recent_realised * _FADING + realised

    # ---- on every rank ----

    @guarded(nothing)
    def take(self, decision: Decision) -> None:
        """A decision was broadcast."""
        self._due.append(decision)

    @guarded(nothing)
    def advance(self, clock: int) -> None:
        """Put in force what is due at operation ``clock``."""
        while self._due and self._due[0].at <= clock:
            self._apply(self._due.pop(0), clock)

    def _apply(self, decision: Decision, clock: int) -> None:
        assert_same("hybrid-marconi arm %d at operation %d", decision.arm, clock)
        arm = self.arms[decision.arm]
        table = None if decision.table is None else table_from_bytes(decision.table)
        self.in_force = self._decider.in_force = decision.arm
        self._cache.put_in_force(
            make_policy(arm.policy.kind, arm.policy.alpha), arm.admission is None, table
        )
        self.switches[decision.reason] = self.switches.get(decision.reason, 0) + 1
        if self._client is not None:
            logger.info("hybrid-marconi: %s (from request %d on)", decision.text, clock)

    @guarded(nothing)
    def reset(self) -> None:
        """The cache was emptied: what was learned about its content is void."""
        # The operation count starts over; every rank has heard the same decisions.
        for decision in self._due:
            self._apply(decision, decision.at)
        self._due = []
        self._decider.reset()
        self._start_over()
        self._reset_shadows()

    @guarded(nothing, by="_lead")
    def _reset_shadows(self) -> None:
        if self._client is not None:
            self._client.reset()

    def close(self) -> None:
        """End the shadow process."""
        if self._client is not None:
            self._client.close()

    def status(self) -> dict[str, Any]:
        """What is in force and why, ready for JSON."""
        config, arm = self._cache.config, self.arms[self.in_force]
        mode = "bootstrap" if config.tuner == "bootstrap" else config.policy
        scores = getattr(self._decider, "scores", ())
        names = [each.name for each in self.arms]
        agreement = None
        if self._recent_predicted > 0:
            agreement = self._recent_realised / self._recent_predicted
        return {
            "mode": mode,
            "arm": arm.name,
            "policy": arm.policy.kind,
            "alpha": arm.policy.alpha,
            "first_victims": arm.admission is None,
            "switches": dict(self.switches),
            "scores": dict(zip(names, scores, strict=False)),
            "predicted_flops": self._predicted,
            "realised_flops": self._realised,
            "agreement": agreement,
            **({"process": "off"} if self._client is None else self._client.status()),
        }


def _pools(cache: HybridMarconiCache) -> Budget:
    """What the pools hold for a replay, which serves one request at a time."""
    pool, costs = cache.req_to_token_pool, cache.view.costs
    # A running request's working state is the checkpoint at its end; what else it
    # holds is never a checkpoint's.
    held = pool.mamba_initial_tracking_slots if cache.enable_mamba_extra_buffer else 0
    if cache.shared is not None:
        return Budget(max(cache.shared.total_bytes - held * costs.state_bytes, 0))
    slots, tokens = pool.mamba_allocator.size - held, cache.token_to_kv_pool_allocator.size
    size = slots * costs.state_bytes + tokens * costs.kv_bytes_per_token
    return Budget(size, state_slots=max(slots, 1), kv_tokens=tokens)


def _decider(config: CacheConfig, arms: tuple[Arm, ...]) -> Decider | Bootstrap:
    names = [arm.name for arm in arms]
    if config.tuner == "bootstrap":
        return Bootstrap(names, factor=config.bootstrap_factor)
    return Decider(names, 0, lru_index(arms))

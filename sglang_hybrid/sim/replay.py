"""Replay of one trace under one policy, admission and budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.engine import cache as arrays
from sglang_hybrid.sim.engine.cache import Cache, grown, new_cache, set_rules
from sglang_hybrid.sim.engine.carry import carry, most_cuts
from sglang_hybrid.sim.engine.index import reindex
from sglang_hybrid.sim.engine.plan import most_positions
from sglang_hybrid.sim.engine.requests import JOB_SIZE
from sglang_hybrid.sim.engine.run import CLOCK_SIZE, run_concurrent, run_serial
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.trace import IntArray
from sglang_hybrid.sim.union_tree import UnionTree

_CUTS_PER_REQUEST = 8
"""Room that is made in advance; more is made when a request needs it."""


@dataclass
class Served:
    """What happened to each request. R entries each.

    Attributes:
        hits: tokens reused.
        matched: tokens of the prompt whose KV was resident.
        cached: False where the request did not fit and ran without the cache.
    """

    hits: IntArray
    matched: IntArray
    cached: NDArray[np.bool_]

    @classmethod
    def empty(cls, requests: int) -> Served:
        return cls(
            np.zeros(requests, np.int64), np.zeros(requests, np.int64), np.zeros(requests, np.bool_)
        )


class SerialReplay:
    """A cache that serves the requests of a trace one after another, in steps.

    Args:
        budget: None for an infinite cache.
        log_victims: keep what `victims` tells.
    """

    def __init__(
        self,
        tree: UnionTree,
        costs: ModelCosts,
        policy: PolicySpec,
        admission: Admission,
        budget: Budget | None,
        *,
        log_victims: bool = False,
    ) -> None:
        self._rules = costs, policy, admission, budget
        self.cache: Cache = new_cache(tree, *self._rules, log_victims=log_victims)
        self._tree_nodes = tree.num_nodes
        self.served = Served.empty(len(tree.input_len))
        self.position = 0

    def advance(self, stop: int) -> None:
        """Serve the requests up to ``stop``, not included."""
        served = self.served
        while self.position < stop:
            self.position = run_serial(
                self.cache, self.position, stop, served.hits, served.matched, served.cached
            )
            if self.position < stop:
                self.cache = grow_for(self.cache, self.position)

    def go_on_with(self, tree: UnionTree, dropped: int) -> None:
        """Take over what is resident into another tree, and serve its further requests.

        Args:
            tree: its first requests are those of the present tree, all of them served, but
                for the first ``dropped``. What only these pass is freed. A log of victims
                is not carried on.

        Raises:
            ValueError: requests that have not been served, or that ``tree`` lacks.
        """
        old = self.cache
        kept = len(old.requests) - dropped
        if self.position < len(old.requests) or not 0 <= kept <= len(tree.input_len):
            raise ValueError(
                f"served {self.position} of {len(old.requests)} requests, of which the first "
                f"{dropped} are dropped; a tree of {len(tree.input_len)} cannot follow"
            )
        cuts = count(old, "NODES") - self._tree_nodes
        spare = most_cuts(cuts, dropped) + _CUTS_PER_REQUEST * (len(tree.input_len) - kept)
        new = new_cache(tree, *self._rules, spare_nodes=spare)._replace(table=old.table)
        carry(old, new, dropped)
        served = Served.empty(len(tree.input_len))
        for name in ("hits", "matched", "cached"):
            getattr(served, name)[:kept] = getattr(self.served, name)[dropped:]
        self.cache, self.served, self.position = new, served, kept
        self._tree_nodes = tree.num_nodes


def switch(cache: Cache, policy: PolicySpec, admission: Admission) -> None:
    """Put another policy and admission in force; what is resident stays."""
    set_rules(cache, policy, admission)
    reindex(cache)


def grow_for(cache: Cache, request: int) -> Cache:
    """Room for the positions of ``request``, and of many like it."""
    most = int(most_positions(cache, request))
    return grown(cache, nodes=16 * most, planned=most)


def victims(cache: Cache) -> list[tuple[int, int, bool]]:
    """(clock, depth, was a leaf) of each victim, in order, of a cache that logs them."""
    rows = cache.victims[: count(cache, "VICTIMS")]
    return [(int(clock), int(depth), bool(leaf)) for clock, depth, leaf in rows]


def count(cache: Cache, name: str) -> int:
    """One of the counts of `engine.cache`, by its name."""
    return int(cache.counts[getattr(arrays, name)])


def resident_states(cache: Cache) -> list[int]:
    """Depths of all resident states, sorted."""
    slots: Any = cache.lists[arrays.SLOTS, : count(cache, "STATES")]
    return sorted(int(depth) for depth in cache.nodes["depth"][slots])


class ConcurrentReplay:
    """A cache whose requests run side by side, by arrival and service time.

    Args:
        arrival: seconds, float64[R].
        timing: table of a `PrefillTime`: tokens, seconds, overhead, least time.
        max_running: requests that may run at once.
        seconds_per_output_token: of one running request.
    """

    def __init__(
        self,
        cache: Cache,
        arrival: NDArray[np.float64],
        timing: tuple[NDArray[np.float64], NDArray[np.float64], float, float],
        max_running: int,
        seconds_per_output_token: float,
    ) -> None:
        requests = len(cache.requests)
        self.cache = cache
        self.served = Served.empty(requests)
        self.ttft = np.zeros(requests)
        self.position = 0
        self._inputs = arrival, timing, seconds_per_output_token
        self._jobs = np.zeros((max_running, JOB_SIZE), np.int64)
        self._ends = np.zeros(max_running)
        self._busy = np.full(max_running, -1, np.int64)
        self._clock = np.zeros(CLOCK_SIZE)

    def advance(self, stop: int) -> None:
        """Start the requests up to ``stop``, not included; at the last one, all end."""
        served = self.served
        arrival, timing, per_token = self._inputs
        while self.position < stop:
            self.position = run_concurrent(
                self.cache,
                self.position,
                stop,
                served.hits,
                served.matched,
                served.cached,
                self.ttft,
                arrival,
                timing,
                per_token,
                self._jobs,
                self._ends,
                self._busy,
                self._clock,
            )
            if self.position < stop:
                self.cache = grow_for(self.cache, self.position)

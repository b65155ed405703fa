"""Scheduler time spent in the cache's own steps; measured only, never decided upon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

SECTIONS = ("match", "admit", "checkpoint", "evict", "record", "tune", "report")
"""Matches finalised, requests admitted, checkpoints placed, victims evicted, finished requests
recorded, tuner, metrics written."""

_MAX_PENDING = 1 << 16


class SchedulerTimes:
    """Durations of calls, by section, until they are drained.

    A call inside another is charged to its own section only. SGLang's part of a step
    that the cache extends is included.
    """

    def __init__(self) -> None:
        # Bounded in case nobody drains: the oldest are then dropped.
        self._pending: dict[str, deque[int]] = {
            section: deque(maxlen=_MAX_PENDING) for section in SECTIONS
        }
        self._drained = {section: (0, 0.0) for section in SECTIONS}
        self._inner_ns = 0

    def timed(self, function: Callable[..., Any], section: str) -> Callable[..., Any]:
        """``function``, with its exclusive time added to ``section``."""
        add = self._pending[section].append

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner_ns = self._inner_ns, 0
            start = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = perf_counter_ns() - start
                add(elapsed - self._inner_ns)
                self._inner_ns = outer + elapsed

        return wrapper

    def watch_cache(self, cache: Any, states: Any) -> None:
        """Time the steps of a cache and of its component for states."""
        matches = ("finalize_match_result_in_tree_core", "finalize_match_result_in_cache")
        inserts = (
            "prepare_for_caching_req",
            "commit_insert_component_data",
            "cleanup_after_caching_req",
        )
        self.watch(states, matches, "match")
        self.watch(cache, ("plan_chunk", "on_admitted"), "admit")
        self.watch(states, inserts, "checkpoint")
        self.watch(cache.view, ("settle",), "checkpoint")
        self.watch(cache, ("_evict",), "evict")
        self.watch(cache, ("on_finished",), "record")

    def watch_tuning(self, tuning: Any) -> None:
        """Time what a cache's tuner does in the scheduler."""
        self.watch(tuning, ("record", "decide", "advance"), "tune")

    def watch(self, owner: Any, methods: Iterable[str], section: str) -> None:
        """Time methods of one object from now on; other objects of its class are not touched."""
        for name in methods:
            setattr(owner, name, self.timed(getattr(owner, name), section))

    def drain(self) -> dict[str, list[float]]:
        """Seconds of every call since the last time, by section."""
        drained = {}
        for section, pending in self._pending.items():
            seconds = drained[section] = [nanoseconds * 1e-9 for nanoseconds in pending]
            pending.clear()
            calls, total = self._drained[section]
            self._drained[section] = calls + len(seconds), total + sum(seconds)
        return drained

    def totals(self) -> dict[str, dict[str, float]]:
        """Calls and seconds since start-up, by section."""
        totals = {}
        for section, pending in self._pending.items():
            calls, seconds = self._drained[section]
            totals[section] = {
                "calls": calls + len(pending),
                "seconds": seconds + sum(pending) * 1e-9,
            }
        return totals

"""The metrics of the cache, beside SGLang's own on `/metrics`.

Values are written after a prefill or a decode step, at most ten times a second, and
when the scheduler becomes idle; then every second, as the tuner goes on by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

from sglang_hybrid.adapter.metric_table import METRICS, Metric, Snapshot
from sglang_hybrid.adapter.timing import SchedulerTimes

logger = logging.getLogger(__name__)

_BUCKETS_S = (*(m * 10.0**e for e in range(-6, -1) for m in (1, 2.5, 5)), 0.1)
_BUSY_INTERVAL_S, _IDLE_INTERVAL_S = 0.1, 1.0


class Exporter:
    """Prometheus objects for `METRICS`, and what was last written to each.

    Args:
        labels: those of SGLang's collector, which come before a metric's own.
        registry: None for the default one, which SGLang serves.
    """

    def __init__(self, labels: Mapping[str, Any], registry: Any = None) -> None:
        # SGLang has set PROMETHEUS_MULTIPROC_DIR by now, which this import reads.
        import prometheus_client

        self._labels = dict(labels)
        self._where = {} if registry is None else {"registry": registry}
        self._client = prometheus_client
        self._families = {metric.name: self._declare(metric) for metric in METRICS}
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._written: dict[str, dict[tuple[str, ...], float]] = {
            metric.name: {} for metric in METRICS
        }

    def _declare(self, metric: Metric) -> Any:
        names = [*self._labels, *metric.labels]
        if metric.kind == "counter":
            return self._client.Counter(metric.family, metric.meaning, names, **self._where)
        if metric.kind == "gauge":
            return self._client.Gauge(
                metric.family, metric.meaning, names, multiprocess_mode="mostrecent", **self._where
            )
        return self._client.Histogram(
            metric.family, metric.meaning, names, buckets=_BUCKETS_S, **self._where
        )

    def write(self, seen: Snapshot, times: SchedulerTimes | None = None) -> None:
        """Bring every metric up to what ``seen`` says, and drain ``times`` into it."""
        for metric in METRICS:
            values, written = metric.read(seen), self._written[metric.name]
            for key, value in values.items():
                if written.get(key) != value:
                    self._write(metric, key, value)
            if metric.kind == "gauge" and len(written) > len(values):
                for key in [key for key in written if key not in values]:
                    self._write(metric, key, metric.gone)
                    del written[key]
        if times is not None:
            for section, seconds in times.drain().items():
                child = self._child("scheduler_seconds", (section,))
                for each in seconds:
                    child.observe(each)

    def _write(self, metric: Metric, key: tuple[str, ...], value: float) -> None:
        written = self._written[metric.name]
        child = self._child(metric.name, key)
        if metric.kind == "gauge":
            child.set(value)
        else:
            # A total that went down belongs to a tuner that started anew.
            child.inc(max(value - written.get(key, 0.0), 0.0))
        written[key] = value

    def _child(self, name: str, key: tuple[str, ...]) -> Any:
        place = (name, key)
        if place not in self._children:
            values = [str(value) for value in (*self._labels.values(), *key)]
            self._children[place] = self._families[name].labels(*values)
        return self._children[place]


class _Reporting:
    """Exporter of one scheduler, created with its first report."""

    def __init__(self, labels: Mapping[str, Any], cache: Any) -> None:
        self._exporter = Exporter(labels)
        self._cache = cache
        self._last = 0.0
        self._is_stale = True
        self.write = self._write
        if cache.times is not None:
            self.write = cache.times.timed(self._write, "report")

    def _write(self) -> None:
        self._exporter.write(self._cache.snapshot(), self._cache.times)

    def step(self, is_idle: bool) -> None:
        """The scheduler has done something, or finds nothing to do."""
        now = monotonic()
        interval = _IDLE_INTERVAL_S if is_idle else _BUSY_INTERVAL_S
        if now - self._last >= interval or (is_idle and self._is_stale):
            self.write()
            self._last = now
        self._is_stale = not is_idle


_ATTRIBUTE = "_hybrid_marconi_metrics"


def _reporting_of(reporter: Any) -> _Reporting | None:
    """Of a scheduler that reports metrics and did not fail to; else None."""
    if not reporter.current_scheduler_metrics_enabled:
        return None
    if not hasattr(reporter, _ATTRIBUTE):
        reporting = _Reporting(reporter.metrics_collector.labels, reporter.scheduler.tree_cache)
        setattr(reporter, _ATTRIBUTE, reporting)
    found: _Reporting | None = getattr(reporter, _ATTRIBUTE)
    return found


def _report(reporter: Any, is_idle: bool = False) -> None:
    """Metrics must not end a scheduler that serves: they stop after one warning."""
    try:
        reporting = _reporting_of(reporter)
        if reporting is not None:
            reporting.step(is_idle)
    except Exception:
        logger.warning("hybrid-marconi: its metrics are off from here on", exc_info=True)
        setattr(reporter, _ATTRIBUTE, None)


def after_prefill(_result: None, reporter: Any, *_args: Any, **_kwargs: Any) -> None:
    """Hook after `SchedulerMetricsReporter.report_prefill_stats`."""
    _report(reporter)


def after_decode(_result: None, reporter: Any, *_args: Any, **_kwargs: Any) -> None:
    """Hook after `SchedulerMetricsReporter.report_decode_stats`, called at every step."""
    _report(reporter)


def after_idle(_result: None, reporter: Any) -> None:
    """Hook after `SchedulerMetricsReporter._maybe_log_idle_metrics`, called while idle."""
    _report(reporter, is_idle=True)

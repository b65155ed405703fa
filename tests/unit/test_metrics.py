"""What a scrape shows of a cache's snapshot."""

import math
from types import SimpleNamespace

import observed
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_hybrid.adapter import metrics
from sglang_hybrid.adapter.counters import Counters
from sglang_hybrid.adapter.guards import Guards
from sglang_hybrid.adapter.metric_table import KINDS, METRICS, Snapshot
from sglang_hybrid.adapter.metrics import Exporter
from sglang_hybrid.adapter.timing import SchedulerTimes
from sglang_hybrid.core.checkpoints import Kind

LABELS = {"model_name": "m", "tp_rank": 0}
TUNING = {
    **observed.TUNING,
    "scores": {"utility:alpha=0.5+asked": 3e12, "lru": 1e12},
    "predicted_flops": 4e12,
    "realised_flops": 3e12,
}


def snapshot(counters, tuning=None):
    live = {**dict.fromkeys(KINDS, 0), "branch": 3}
    parts = Guards.of(is_strict=False, ranks=1).status()
    return Snapshot(
        counters.as_dict(), live, 1000, counters.short.as_dict(), (5, 400), tuning, parts
    )


class Scrape:
    """An exporter, and what it shows."""

    def __init__(self):
        self.registry = prometheus_client.CollectorRegistry()
        self.exporter = Exporter(LABELS, self.registry)

    def samples(self):
        text = prometheus_client.generate_latest(self.registry).decode()
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name, **labels):
        key = (f"sglang:hybrid_{name}", *sorted({**LABELS, "tp_rank": "0", **labels}.items()))
        return self.samples().get(key)


@pytest.fixture
def scrape():
    return Scrape()


def test_every_metric_is_shown_with_its_labels(scrape):
    scrape.exporter.write(snapshot(Counters(), TUNING), SchedulerTimes())
    shown = {}
    for name, *labels in scrape.samples():
        shown.setdefault(name, set()).update(label for label, _ in labels)
    for metric in METRICS:
        assert {*LABELS, *metric.labels} <= shown[metric.exported], metric.exported


def test_counters_grow_by_what_was_added_since(scrape):
    counters = Counters()
    for hits in (3, 5, 5):
        counters.branch_hits = hits
        counters.hit_tokens = 100 * hits
        scrape.exporter.write(snapshot(counters))
        assert scrape.value("hits_total", kind="branch") == hits
        assert scrape.value("hit_tokens_total") == 100 * hits


def test_a_total_that_started_anew_goes_on(scrape):
    counters = Counters()
    for windows, shown in ((7, 7), (2, 7), (4, 9)):
        scrape.exporter.write(snapshot(counters, {**TUNING, "windows": windows}))
        assert scrape.value("windows_total") == shown


def test_gauges_are_what_is_now(scrape):
    scrape.exporter.write(snapshot(Counters()))
    assert scrape.value("checkpoints", kind="branch") == 3
    assert scrape.value("checkpoint_bytes", kind="branch") == 3000
    assert scrape.value("record_requests") == 5 and scrape.value("record_bytes") == 400
    assert scrape.value("tuner_process", state="off") == 1
    assert scrape.value("alpha") is None


def test_the_arm_in_force_moves(scrape):
    scrape.exporter.write(snapshot(Counters(), TUNING))
    after = {**TUNING, "arm": "lru", "policy": "lru", "alpha": None, "scores": {"lru": 2e12}}
    scrape.exporter.write(snapshot(Counters(), after))
    assert scrape.value("arm_info", arm="lru", policy="lru") == 1
    assert scrape.value("arm_info", arm=TUNING["arm"], policy="utility") == 0
    assert scrape.value("arm_score_flops", arm="lru") == 2e12
    assert math.isnan(scrape.value("arm_score_flops", arm=TUNING["arm"]))
    assert math.isnan(scrape.value("alpha"))
    assert scrape.value("switches_total", reason="better") == 2
    assert scrape.value("switches_total", reason="guard") == 0


def test_times_are_a_histogram_in_seconds(scrape):
    times = SchedulerTimes()
    outer = times.timed(lambda: inner(), "checkpoint")
    inner = times.timed(lambda: sum(range(1000)), "evict")
    for _ in range(3):
        outer()
    totals = times.totals()
    scrape.exporter.write(snapshot(Counters()), times)
    for section in ("checkpoint", "evict"):
        assert scrape.value("scheduler_seconds_count", section=section) == 3
        total = totals[section]["seconds"]
        assert scrape.value("scheduler_seconds_sum", section=section) == pytest.approx(total)
        assert times.totals()[section] == pytest.approx(totals[section])
    scrape.exporter.write(snapshot(Counters()), times)
    assert scrape.value("scheduler_seconds_count", section="evict") == 3


def reporter(cache, is_enabled=True):
    return SimpleNamespace(
        current_scheduler_metrics_enabled=is_enabled,
        metrics_collector=SimpleNamespace(labels=LABELS),
        scheduler=SimpleNamespace(tree_cache=cache),
    )


class Cache:
    times = None

    def __init__(self):
        self.looks = 0

    def snapshot(self):
        self.looks += 1
        return snapshot(Counters())


@pytest.fixture
def clock(monkeypatch, scrape):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(metrics, "monotonic", lambda: now.s)
    monkeypatch.setattr(metrics, "Exporter", lambda labels: scrape.exporter)
    return now


def test_busy_at_most_ten_times_a_second_and_once_on_becoming_idle(clock):
    cache = Cache()
    at = reporter(cache)
    metrics.after_prefill(None, at, None, None, False)
    for _ in range(5):
        clock.s += 0.03
        metrics.after_decode(None, at, False)
    assert cache.looks == 2
    for _ in range(5):
        clock.s += 0.01
        metrics.after_idle(None, at)
    assert cache.looks == 3
    clock.s += 1
    metrics.after_idle(None, at)
    assert cache.looks == 4


def test_a_rank_that_reports_no_metrics_writes_none(clock):
    cache = Cache()
    metrics.after_prefill(None, reporter(cache, is_enabled=False), None, None, False)
    assert cache.looks == 0


def test_a_failure_is_one_warning_and_nothing_more(clock, caplog):
    at = reporter(Cache())
    at.scheduler.tree_cache.snapshot = lambda: 1 / 0
    for _ in range(3):
        clock.s += 10
        metrics.after_prefill(None, at, None, None, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "metrics are off" in caplog.text


def test_kinds_are_those_of_checkpoints():
    counters = Counters().as_dict()
    for kind in Kind:
        assert {f"{kind.name.lower()}_checkpoints", f"{kind.name.lower()}_hits"} <= counters.keys()

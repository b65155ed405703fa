"""What tuning costs on the scheduler's thread, beside the same cache with a fixed policy.

    python -m pytest bench/micro/test_tuning_overhead.py -s

All caches live in one process and take turns at the same requests, so that other load on
the machine hits them alike. Counted is the thread's time inside the cache: everything that
the scheduler calls, eviction included, and what the tuner does in every pass of the event
loop. The shadow caches run in their own process, as in a server.
"""

import statistics
import time

import numpy as np
import pytest
from driver import Driver
from harness import make_cache

from bench.tuning.streams import random_tokens
from bench.tuning.synthetic import tenants
from sglang_hybrid.adapter.recorder import Recorder
from sglang_hybrid.adapter.tuning import Tuning

REQUESTS, WARM_UP = 1500, 200
SLOTS, TOKENS, CHUNK = 20, 20480, 4096
MAX_RATIO, MAX_P99_DIFFERENCE_MS = 1.05, 1.0
ENTRY_POINTS = (
    "match_prefix",
    "prefix_device_indices",
    "plan_chunk",
    "on_admitted",
    "lock",
    "unlock",
    "evict",
    "evict_for_alloc",
    "checkpoint",
)
CONFIGS = {
    "fixed": {"policy": "utility", "record_requests": 0},
    "auto, never switching": {"policy": "auto"},
    "auto": {"policy": "auto"},
}
"""The second takes the same decisions as the first, so that only tuning differs."""


class Timed:
    """A cache with the tuner of its configuration, and the time it took per request."""

    def __init__(self, config, switches):
        self.cache = make_cache(config, slots=SLOTS, tokens=TOKENS)
        self.cache.check_integrity = lambda: None  # O(tree), and never on a server
        self.driver = Driver(self.cache, chunk=CHUNK)
        # As `adapter.binding.bind` does on the rank that decides.
        config = self.cache.config
        if config.is_tuned or config.record_requests:
            self.cache.recorder = Recorder(config.tuner_window, config.record_requests)
        if config.is_tuned:
            self.cache.tuning = Tuning.of(self.cache, CHUNK, decides=True)
        self.samples = []
        self._switches = switches
        self._spent = self._depth = 0
        for name in ENTRY_POINTS:
            setattr(self.cache, name, self._timed(getattr(self.cache, name)))
        self._pass = self._timed(self._hear_decisions)

    def _timed(self, call):
        """``call``, whose time counts unless it was called from inside the cache."""

        def timed(*args, **kwargs):
            self._depth += 1
            start = time.thread_time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._spent += time.thread_time_ns() - start

        return timed

    def _hear_decisions(self):
        if self.cache.tuning is not None:
            for decision in self.cache.tuning.pending():
                if self._switches:
                    self.cache.tuning.take(decision)

    def serve(self, prompt, output):
        self._spent = 0
        for _ in range(1 + len(output)):  # a pass per prefill and per generated token
            self._pass()
        self.driver.serve(prompt, output)
        self.samples.append(self._spent / 1e6)

    def close(self):
        if self.cache.tuning is not None:
            self.cache.tuning.close()


@pytest.fixture(scope="module")
def timed():
    caches = {name: Timed(config, name == "auto") for name, config in CONFIGS.items()}
    stream, rng = tenants(WARM_UP + REQUESTS, seed=0), np.random.default_rng(1)
    names = list(caches)
    for number, request in enumerate(stream.requests):
        output = list(random_tokens(rng, request.output_len))
        for i in range(len(names)):
            caches[names[(number + i) % len(names)]].serve(list(request.own), output)
    tuning = caches["auto"].cache.tuning.status()
    for cache in caches.values():
        cache.close()
    print(f"\nin force at the end: {tuning['arm']}, after {tuning['switches']}")
    return {name: cache.samples[WARM_UP:] for name, cache in caches.items()}, tuning


@pytest.mark.parametrize("name", ["auto, never switching", "auto"])
def test_tuning_hardly_takes_time_from_the_scheduler(timed, name):
    samples, tuning = timed
    base, own = samples["fixed"], samples[name]
    ratio = statistics.median(own) / statistics.median(base)
    difference = p99(own) - p99(base)
    print(f"\n{'fixed':21} {text(base)}\n{name:21} {text(own)}")
    print(f"ratio of medians {ratio:.3f}, difference of P99 {difference:+.3f} ms")
    assert tuning["process"] == "running" and tuning["windows"] > 0
    assert ratio <= MAX_RATIO
    assert difference < MAX_P99_DIFFERENCE_MS


def p99(times):
    return statistics.quantiles(times, n=100)[98]


def text(times):
    return (
        f"median {statistics.median(times):.3f} ms, mean {statistics.mean(times):.3f}, "
        f"P99 {p99(times):.3f}, most {max(times):.3f} of {len(times)} requests"
    )

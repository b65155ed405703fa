"""From reports of shadow caches to the rules in force, on a real cache."""

import math

import pytest
from driver import Driver
from harness import make_cache

from sglang_hybrid.adapter.tuning import Tuning
from sglang_hybrid.shadow.arms import arms_for, bootstrap_arms
from sglang_hybrid.shadow.messages import Report
from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.served import admission_of


class Reports:
    """Stands for the client: what it will report is given, what it is told is kept."""

    def __init__(self, *reports):
        self.reports, self.sent, self.searches, self.resets = list(reports), [], 0, 0
        self.failures, self.has_process = 0, True

    def start(self):
        pass

    def poll(self):
        now, self.reports = self.reports, []
        return now

    def send(self, window):
        self.sent.append(window)

    def search(self):
        self.searches += self.has_process
        return self.has_process

    def reset(self):
        self.resets += 1

    def status(self):
        return {"process": "running", "windows": len(self.sent)}


def report(saved, *, is_search=False):
    return Report(0, 0, tuple(saved), 1.0, is_search=is_search)


def tuned(config, client, arms=None):
    cache = make_cache({"policy": "auto", **config}, slots=8, tokens=2400)
    admission = admission_of(cache.config, 1, 64)
    if arms is None:
        arms = arms_for(cache.config.policy, admission)
    cache.tuning = Tuning(cache, arms, client)
    return cache


def favouring(cache, name):
    return report([2.0 if arm.name == name else 1.0 for arm in cache.tuning.arms])


def serve(cache, count, start=0):
    driver = Driver(cache, chunk=64)
    for i in range(start, start + count):
        driver.serve(range(10_000 * i, 10_000 * i + 100))


def decide(cache):
    for decision in cache.tuning.pending():
        cache.tuning.take(decision)


def test_a_decision_holds_from_the_operation_it_names():
    client = Reports()
    cache = tuned({}, client)
    serve(cache, 5)
    client.reports = [favouring(cache, "lru+asked")]
    (decision,) = cache.tuning.pending()
    assert decision.at == 6 and decision.reason == "better"
    cache.tuning.take(decision)
    assert cache.view.policy.name == "density" and cache.takes_first_victims
    serve(cache, 1, 5)
    assert cache.view.policy.name == "lru" and not cache.takes_first_victims
    state = cache.tuning.status()
    assert (state["arm"], state["switches"]) == ("lru+asked", {"better": 1})
    assert not state["first_victims"]


def test_an_arm_that_saves_less_than_lru_gives_way():
    client = Reports()
    cache = tuned({}, client)
    names = [arm.name for arm in cache.tuning.arms]
    for window in range(30):  # it was far better for long
        client.reports = [favouring(cache, "utility:alpha=1")]
        decide(cache)
        serve(cache, 1, window)
    assert cache.tuning.status()["arm"] == "utility:alpha=1"
    worse = [0.5 if name == "utility:alpha=1" else 1.0 for name in names]
    for window in range(2):
        client.reports = [report(worse)]
        decide(cache)
        serve(cache, 1, 30 + window)
    state = cache.tuning.status()
    assert (state["arm"], state["switches"]) == ("lru", {"better": 1, "guard": 1})


@pytest.mark.parametrize("saved", [[], [1.0], [math.nan] * 16, [-1.0] * 16])
def test_a_report_that_cannot_be_is_left_out(saved, caplog):
    client = Reports()
    cache = tuned({}, client)
    client.reports = [report(saved)]
    assert cache.tuning.pending() == []
    assert "is void" in caplog.text
    client.reports = [favouring(cache, "lru")]
    assert len(cache.tuning.pending()) == 1


def test_a_flush_puts_in_force_what_was_decided_and_forgets_the_rest():
    client = Reports()
    cache = tuned({}, client)
    serve(cache, 3)
    client.reports = [favouring(cache, "lru")]
    decide(cache)
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    assert client.resets == 1
    assert cache.view.policy.name == "lru"
    assert not any(cache.tuning.status()["scores"].values())


def test_alpha_alone_is_tuned_for_marconi():
    client = Reports()
    cache = tuned({"policy": "marconi"}, client)
    assert cache.tuning.status()["alpha"] == 0
    client.reports = [favouring(cache, "marconi:alpha=2")]
    decide(cache)
    serve(cache, 1)
    assert cache.view.policy.name == "marconi" and cache.view.policy.alpha == 2
    assert cache.takes_first_victims


def bootstrapped(client):
    config = {"policy": "marconi", "tuner": "bootstrap", "bootstrap_factor": 5}
    return tuned(config, client, bootstrap_arms())


def fill(cache, requests, start=0):
    """Serve and record, a window per request."""
    for i in range(start, start + requests):
        serve(cache, 1, i)
        cache.tuning.count_request()
        cache.tuning.record(Window)  # what is in it does not matter here


def test_bootstrap_searches_once_a_multiple_of_the_requests_before_the_first_eviction():
    client = Reports()
    cache = bootstrapped(client)
    fill(cache, 1)
    while not cache.counters.evicted_states:
        fill(cache, 1, len(client.sent))
    before = len(client.sent) - 1
    fill(cache, 5 * before - len(client.sent) - 1, len(client.sent))
    assert client.searches == 0
    fill(cache, 1, len(client.sent))
    assert client.searches == 1
    client.reports = [report([]), report(range(len(cache.tuning.arms)), is_search=True)]
    decide(cache)
    fill(cache, 20, len(client.sent))
    state = cache.tuning.status()
    assert (state["alpha"], state["switches"]) == (16, {"tuned": 1})
    assert client.searches == 1


def test_a_search_that_is_lost_is_asked_for_again():
    client = Reports()
    cache = bootstrapped(client)
    client.has_process = False
    fill(cache, 60)
    assert client.searches == 0 and cache.counters.evicted_states
    client.has_process = True
    fill(cache, 1, 60)
    assert client.searches == 1
    client.failures += 1  # it died on the way
    decide(cache)
    fill(cache, 1, 61)
    assert client.searches == 2


def test_of_several_windows_at_once_the_last_decision_counts():
    client = Reports()
    cache = tuned({}, client)
    first, second = favouring(cache, "density"), favouring(cache, "lru")
    client.reports = [first, *[second] * 9]
    (decision,) = cache.tuning.pending()
    assert cache.tuning.arms[decision.arm].name == "lru"
    cache.tuning.take(decision)
    serve(cache, 1)
    assert cache.tuning.status()["switches"] == {decision.reason: 1}
    client.reports = [*[first] * 9, *[second] * 20]
    assert cache.tuning.pending() == []

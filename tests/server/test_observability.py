"""What a real server tells about its cache: metrics, explanations, top and record."""

import json
import time

import pytest
import requests
import scrape
from workload import counters, hit, sharing, tokens

from sglang_hybrid.adapter.counters import Counters
from sglang_hybrid.adapter.guards import Guards
from sglang_hybrid.adapter.metric_table import KINDS, METRICS, Snapshot
from sglang_hybrid.cli import main
from sglang_hybrid.sim.traces import load_trace

FIXED = Counters()
PARTS = Guards.of(is_strict=False, ranks=1).status()
ONLY_TUNED = {
    metric.exported
    for metric in METRICS
    if metric.kind != "histogram"
    and not metric.read(
        Snapshot(FIXED.as_dict(), dict.fromkeys(KINDS, 0), 1, FIXED.short.as_dict(), parts=PARTS)
    )
}


@pytest.fixture
def measured(served):
    server, setup = served
    if "--enable-metrics" not in setup.args:
        pytest.skip("this setup has no metrics")
    return server


def value(server, name, **labels):
    (found,) = [
        sample.value
        for sample in scrape.samples(server)
        if sample.name == f"sglang:hybrid_{name}" and labels.items() <= sample.labels.items()
    ]
    return found


def explained(server, prompt, length=4) -> dict:
    params = {
        "max_new_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": {"explain_cache": True},
    }
    body = {"input_ids": prompt, "sampling_params": params}
    response = requests.post(f"{server.url}/generate", json=body, timeout=120)
    response.raise_for_status()
    return response.json()["meta_info"]


def test_every_query_of_the_dashboard_is_answered(measured):
    hit(measured, tokens(300, 1))
    queries = scrape.queries()
    assert len(queries) > 30 and all(query.metrics for query in queries)
    assert {name for query in queries for name in query.metrics} >= ONLY_TUNED
    assert scrape.unanswered(measured, but=ONLY_TUNED) == []


def test_a_query_for_what_is_not_there_is_noticed(measured, monkeypatch, tmp_path):
    dashboard = tmp_path / "dashboard.json"
    queries = ("sglang:hybrid_nothing", "sum by (nobody) (sglang:hybrid_hits_total)")
    dashboard.write_text(json.dumps({"panels": [{"expr": query} for query in queries]}))
    monkeypatch.setattr(scrape, "DASHBOARD", dashboard)
    assert len(scrape.unanswered(measured)) == 2


def test_a_scrape_soon_shows_what_server_info_shows(measured):
    measured.flush()
    for i in range(4):
        hit(measured, sharing(250, i))
    deadline = time.monotonic() + 60
    while True:  # written when the scheduler is next idle
        now = counters(measured)
        shown = {name: value(measured, f"{name}_total") for name in ("requests", "hit_tokens")}
        if shown == {name: now[name] for name in shown} or time.monotonic() > deadline:
            break
    assert shown == {name: now[name] for name in shown}
    assert value(measured, "hits_total", kind="branch") == now["branch_hits"] > 0
    assert value(measured, "scheduler_seconds_count", section="admit") >= now["requests"]
    reasons = [
        s for s in scrape.samples(measured) if s.name == "sglang:hybrid_short_requests_total"
    ]
    assert sum(sample.value for sample in reasons) == now["requests"]


def test_a_request_that_asks_is_told_why_its_hit_was_short(served):
    server, setup = served
    server.flush()
    first, second, third = (explained(server, sharing(1000, i)) for i in range(3))
    assert first["cached_tokens_details"]["reason"] == "no kv"
    # In a tiny pool a boundary deeper than the hit may have been taken and be gone again.
    possible = ("no state", "evicted") if setup.slots == 8 else ("no state",)
    assert second["cached_tokens_details"]["reason"] in possible
    for meta in (first, second, third):
        details = meta["cached_tokens_details"]
        assert details["hit"] == details["device"] == meta["cached_tokens"]
        assert details["prompt"] == meta["prompt_tokens"]
    assert third["cached_tokens_details"]["kv"] >= setup.reachable(1000)


def test_a_request_that_does_not_ask_is_not_told(served):
    server, _ = served
    prompt = sharing(1000, 7)
    server.generate(prompt, 2)
    server.generate(prompt, 2)
    details = server.generate(prompt, 2)["meta_info"]["cached_tokens_details"]
    assert details.keys() == {"device", "host"}


def test_top_shows_a_look(served, capsys):
    server, _ = served
    assert main.main(["top", "--url", server.url, "--once", "--json"]) == 0
    look = json.loads(capsys.readouterr().out)
    assert look["ranks"] == 1 and look["total"]["counters"]["requests"] > 0
    assert main.main(["top", "--url", server.url, "--once"]) == 0
    assert "hit rate" in capsys.readouterr().out


def test_a_record_is_a_trace_of_what_was_served(served, tmp_path):
    server, _ = served
    server.flush()  # which forgets the record as well
    shared = tokens(300, 40)
    for i in range(3):
        hit(server, [*shared, *tokens(50, 41 + i)], 9)
    out = tmp_path / "record.jsonl"
    assert main.main(["record", "--url", server.url, "--out", str(out)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["input_len"], r["output_len"]) for r in records] == [(350, 8)] * 3
    trace = load_trace(out)
    assert len(trace) == 3
    # The shared prefix is known by its full pages; the fifth page ends beyond it.
    first, second, third = (record["hashes"] for record in records)
    assert len(first) == 5 and first[:4] == second[:4] == third[:4]
    assert len({first[4], second[4], third[4]}) == 3


def test_a_record_is_asked_for_while_the_server_is_used_by_others(served, tmp_path):
    server, _ = served
    hit(server, tokens(300, 50))
    state = {"server_args": {"hybrid_marconi_record": 7}}  # part 7 of nothing
    requests.post(f"{server.url}/set_internal_state", json=state, timeout=60)
    assert main.main(["record", "--url", server.url, "--out", str(tmp_path / "r.jsonl")]) == 0


def test_other_states_can_still_be_set(served):
    server, _ = served
    for key, taken in (("pp_max_micro_batch_size", True), ("no_such_key", False)):
        state = {"server_args": {key: 1}}
        reply = requests.post(f"{server.url}/set_internal_state", json=state, timeout=60)
        assert reply.json() == [taken]

"""Parts of the cache that raise in a server that serves: it goes on without them."""

import json

import pytest
import requests
import scrape
from comparison import Comparison
from cpu_server import launch
from workload import sharing

PROGRAM = [__file__.replace("test_broken_parts.py", "breaks_parts.py")]
CONFIG = {"policy": "utility", "min_gain_tokens": 1, "record_requests": 100}
FLAGS = [
    *("--cache", "hybrid-marconi", "--cache-config", json.dumps(CONFIG)),
    *("--mamba-radix-cache-strategy", "extra_buffer", "--max-mamba-cache-size", "20"),
    *("--max-total-tokens", "4096", "--enable-metrics"),
]
BREAKS = [
    # Two forwards lose their states, after a layer and before one; later ones save again.
    "sglang_hybrid.adapter.forward_saves:scatter_checkpoints=2",
    "sglang_hybrid.adapter.forward_saves:ForwardSaves.windows_before=4",
    "sglang_hybrid.adapter.stops:StopCopies.note=22-",
    "sglang_hybrid.core.policies:Utility.weight=60-",
    "sglang_hybrid.core.forks:ForkIndex.observe=30-",
]


@pytest.fixture(scope="module")
def breaking(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "breaking.log"
    environment = {"TEST_BREAKS": " ".join(BREAKS)}
    with launch(model, None, *FLAGS, log=log, program=PROGRAM, environment=environment) as server:
        yield server


def cache_of(server) -> dict:
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    return info["internal_states"][0]["hybrid_marconi"]


def parts_of(server) -> dict:
    return cache_of(server)["parts"]


def test_every_answer_is_right_while_its_parts_fail(breaking):
    comparison = Comparison(breaking)
    hits = [
        comparison.ask(sharing(shared, i), 3).hit
        for shared in (250, 61, 333, 129)
        for i in range(3)
    ]
    parts, counters = parts_of(breaking), cache_of(breaking)["counters"]
    assert parts["saving"]["failures"] == 2 and parts["saving"]["is_on"]
    assert counters["unwritten_checkpoints"] >= 2
    # The branch of the first prefix was lost twice, those of the last ones were saved.
    assert hits[2] == 0 and [hits[8], hits[11]] == [333, 129]

    talks = [sharing(100 + 7 * i, i) for i in range(3)]
    turns = 0
    while any(
        (now := parts_of(breaking))[part]["is_on"] for part in ("order", "saving", "history")
    ):
        assert turns < 40, now
        talk = talks[turns % 3]
        answer = comparison.ask(talk, 6)
        talks[turns % 3] = [*talk, *answer.tokens, *sharing(5, turns, 3)][-900:]
        comparison.ask(sharing(222, turns, 9), 3)
        turns += 1

    after = [comparison.ask([*talk, *sharing(9, 3, 3)], 6) for talk in talks]
    assert sum(answer.hit > 0 for answer in after) == 3
    comparison.check()


def test_what_failed_is_told(breaking):
    parts, log = parts_of(breaking), breaking.log.read_text(errors="replace")
    assert [part for part, found in parts.items() if not found["is_on"]] == [
        "order",
        "saving",
        "history",
    ]
    assert parts["tuning"] == {"is_on": True, "failures": 0, "error": ""}
    for name, found in (("eviction order", "order"), ("saving of states", "saving")):
        assert log.count(f"its {name} failed") == 1
        assert log.count(f"its {name} is off until the server is restarted") == 1
        assert "broken for a test" in parts[found]["error"]
    shown = {
        (sample.name, sample.labels.get("part")): sample.value
        for sample in scrape.samples(breaking)
    }
    for part, found in parts.items():
        assert shown["sglang:hybrid_part_off", part] == (not found["is_on"])
        assert shown["sglang:hybrid_part_failures_total", part] == found["failures"]

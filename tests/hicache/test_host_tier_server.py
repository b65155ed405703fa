"""A real server whose device pools are tiny and whose host pools are not."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from comparison import Answer, Comparison, answer_of
from cpu_server import launch
from workload import counters, sharing, tokens

CONFIG = {"policy": "lru", "min_gain_tokens": 1, "strict": True}
FLAGS = [
    *("--cache", "hybrid-marconi", "--cache-config", json.dumps(CONFIG), "--enable-metrics"),
    *("--mamba-radix-cache-strategy", "extra_buffer", "--max-mamba-cache-size", "20"),
    *("--max-total-tokens", "1500", "--chunked-prefill-size", "512"),
    *("--enable-hierarchical-cache", "--hicache-ratio", "6"),
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "page_first_direct"),
]


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "host_tier.log"
    with launch(model, None, *FLAGS, log=log) as server:
        yield server
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]


def status(server):
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    return info["internal_states"][0]["hybrid_marconi"]


def flood(server, seed):
    """Prompts that nobody sends again, more of them than the device's pools hold."""
    before = counters(server)["demoted_states"]
    for i in range(7):
        server.generate(tokens(350, seed + i), 4)
    assert counters(server)["demoted_states"] > before


def from_host(response) -> int:
    return (response["meta_info"]["cached_tokens_details"] or {}).get("host", 0)


def test_a_shared_prefix_comes_back_from_the_host(server):
    server.flush()
    compared = Comparison(server)
    assert [compared.ask(sharing(250, i), 4).hit for i in range(3)] == [0, 0, 250]
    flood(server, 5000)
    before = counters(server)
    response = server.generate(sharing(250, 3), 4)
    assert (response["meta_info"]["cached_tokens"], from_host(response)) == (250, 250)
    after = counters(server)
    assert after["reloaded_states"] == before["reloaded_states"] + 1
    assert after["branch_hits"] == before["branch_hits"] + 1
    # It is a checkpoint of the device again.
    assert compared.ask(sharing(250, 4), 8).hit == 250
    assert counters(server)["reloaded_states"] == after["reloaded_states"]
    compared.check()


def test_a_conversation_goes_on_from_the_host(server):
    server.flush()
    compared, talk, known = Comparison(server), tokens(200, 6), 0
    for turn in range(3):
        answer = compared.ask(talk, 30)
        assert answer.hit == known
        known = len(talk) + len(answer.tokens) - 1
        talk += [*answer.tokens, *tokens(9, 100 + turn)]
        flood(server, 6000 + 10 * turn)
    compared.check()


def test_requests_side_by_side_answer_as_on_an_empty_cache(server):
    server.flush()
    compared = Comparison(server)
    # Eight prefixes in turn, of which the device holds five or six.
    prompts = [sharing(230 + group, i, own=30) for i in range(4) for group in range(8)]

    def one(prompt) -> Answer:
        options = {"return_logprob": True, "top_logprobs_num": 2}
        return answer_of(server.generate(prompt, 6, **options))

    before = counters(server)
    with ThreadPoolExecutor(4) as pool:
        for prompt, answer in zip(prompts, pool.map(one, prompts), strict=True):
            compared.add(prompt, 6, answer)
    after = counters(server)
    assert after["reloaded_states"] > before["reloaded_states"]
    assert sum(answer.hit >= 230 for answer in compared.answers) >= 8
    compared.check()


def test_the_host_s_checkpoints_are_reported_apart(server):
    server.flush()
    assert status(server)["host"] == 0
    flood(server, 7000)
    seen = status(server)
    assert seen["host"] > 0 and sum(seen["live"].values()) <= 20
    lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    shown = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if "{" in line}
    events = {
        line.split('event="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("sglang:hybrid_host_states_total{")
    }
    assert shown["sglang:hybrid_host_checkpoints"] == seen["host"]
    assert events["demoted"] == seen["counters"]["demoted_states"]
    assert events["copied"] >= events["demoted"] > 0

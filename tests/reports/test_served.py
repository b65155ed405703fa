"""Reports that only a server can show. All tests share one, on which SGLang retracts running
requests every few steps; where no request is running it changes nothing."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import requests
import scrape
import zmq
from comparison import Comparison, answer_of
from cpu_server import free_port, launch
from sglang.srt.disaggregation.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from workload import counters, hit, sharing, tokens

SLOTS, TOKENS, CHUNK = 48, 20_000, 256
FLAGS = [
    *("--cache", "hybrid-marconi", "--cache-config", '{"strict": true, "policy": "utility"}'),
    *("--mamba-radix-cache-strategy", "extra_buffer", "--chunked-prefill-size", str(CHUNK)),
    *("--max-mamba-cache-size", str(SLOTS), "--max-total-tokens", str(TOKENS)),
    *("--max-running-requests", "4", "--max-queued-requests", "4", "--enable-metrics"),
]

RARE = 200
"""A token of no other prompt."""


class Events:
    """What the server publishes of its KV."""

    def __init__(self, port: int):
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._socket.subscribe(b"")

    def take(self, until) -> list:
        """All events from the last call on, up to one for which ``until`` holds."""
        found = []
        while not (found and until(found[-1])):
            assert self._socket.poll(60_000), found[-3:]
            payload = self._socket.recv_multipart()[-1]
            found += msgspec.msgpack.decode(payload, type=KVEventBatch).events
        return found


@pytest.fixture(scope="module")
def server_and_events(model, tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("log") / "reports.log"
    publisher = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}", "bind": True}
    flags = [*FLAGS, "--kv-events-config", json.dumps(publisher)]
    environment = {"SGLANG_TEST_RETRACT": "1"}
    with launch(model, None, *flags, log=log, environment=environment) as server:
        yield server, Events(port)
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]


@pytest.fixture
def server(server_and_events):
    server, _ = server_and_events
    server.flush()
    return server


def test_the_fork_probe_at_an_eighth_of_its_lengths(server):
    """sglang #36935, probe of #38000; see `test_the_fork_probe_with_its_numbers`."""
    chains = [tokens(4096 + 8, salt) for salt in (1, 2, 3)]
    for chain in chains:
        server.generate(chain, 1)
    comparison = Comparison(server)
    for prompt in ([*chains[0][:1024], *tokens(3072 + 8, 4)], *chains):
        comparison.ask(prompt, 2)
    hits = [answer.hit for answer in comparison.answers]
    assert all(found >= least for found, least in zip(hits, [1024, 1024, 2048, 3584], strict=True))
    assert hits == [1024, 4096, 4096, 4096]
    comparison.check()


def test_retracted_requests_answer_as_if_nothing_had_happened(server_and_events, server):
    """sglang #22493: retraction dropped the state, and the answers were garbage."""
    comparison, options = Comparison(server), {"return_logprob": True, "top_logprobs_num": 2}
    prompts = [[*tokens(151, i % 3), 33 + i, *tokens(i % 7, i)] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda prompt: answer_of(server.generate(prompt, 12, **options)), prompts
        )
    for prompt, answer in zip(prompts, answers, strict=True):
        comparison.add(prompt, 12, answer)
    retracted = re.findall(r"#retracted_reqs: (\d+)", server.log.read_text(errors="replace"))
    assert sum(map(int, retracted)) > 4
    comparison.check()


def refused(server, prompt) -> bool:
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 30, "ignore_eos": True}}
    reply = requests.post(f"{server.url}/generate", json=body, timeout=120)
    assert reply.ok or "queue is full" in reply.text, reply.text
    return not reply.ok


def in_session(server):
    opened = requests.post(
        f"{server.url}/open_session", json={"capacity_of_str_len": 10_000}, timeout=60
    ).json()
    turn, rid = tokens(200, 20), None
    for i in range(3):
        fields = {"session_params": {"id": opened, "rid": rid}}
        rid = server.generate(turn, 5, **fields)["meta_info"]["id"]
        turn = tokens(20, 30 + i)
    closing = {"session_id": opened}
    requests.post(f"{server.url}/close_session", json=closing, timeout=60).raise_for_status()


def test_slots_survive_full_queues_aborts_and_closed_sessions(server):
    """sglang #12693, #16067, #21404, #26941: slots leaked with requests that never ran, that
    were aborted, or whose session was closed. SGLang checks its pools whenever it is idle, and
    ends if a slot is missing."""
    for i in range(3):
        server.generate(sharing(250, i), 2)
    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(refused, server, sharing(250, i, 60)) for i in range(16)]
        requests.post(
            f"{server.url}/abort_request", json={"rid": "", "abort_all": True}, timeout=60
        )
        assert any(job.result() for job in jobs)  # were refused
    in_session(server)
    server.flush()  # refused while anything is held
    assert hit(server, sharing(250, 50)) == 0


def test_tenants_share_nothing(server):
    """sglang #24638, by `extra_key` and `cache_salt` of requests."""
    prompt = tokens(200, 9)  # less than a chunk
    tenants = ({}, {"cache_salt": "ab"}, {"extra_key": "ab"}, {"cache_salt": "a", "extra_key": "b"})
    for tenant in tenants:
        info = [server.generate(prompt, 2, **tenant)["meta_info"] for _ in range(3)]
        assert [each["cached_tokens"] for each in info] == [0, 0, 199], tenant


def gauge(server, name) -> float:
    (value,) = {
        sample.value for sample in scrape.samples(server) if sample.name == f"sglang:{name}"
    } or {0.0}
    return value


def live(server) -> int:
    return sum(
        int(sample.value)
        for sample in scrape.samples(server)
        if sample.name == "sglang:hybrid_checkpoints"
    )


def wait_until(condition) -> None:
    """Gauges are written every now and then."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_gauges_tell_which_pool_is_full_and_a_flush_empties_both(server):
    """sglang #5979: the one gauge of usage was that of the fullest pool, states shown as KV.
    sglang #23216: slots of states stayed taken after ``/flush_cache``."""
    for i in range(60):  # more states than slots, and few tokens
        server.generate(tokens(20, 100 + i), 1)
    wait_until(lambda: gauge(server, "mamba_evictable_tokens") == live(server) > SLOTS // 2)
    assert gauge(server, "mamba_available_tokens") == SLOTS - live(server)
    assert 0 < gauge(server, "kv_evictable_tokens") < TOKENS // 10
    server.flush()
    server.generate(tokens(20, 1), 1)
    wait_until(lambda: gauge(server, "mamba_evictable_tokens") == live(server) <= 2)
    assert gauge(server, "mamba_available_tokens") == SLOTS - live(server)
    assert gauge(server, "kv_evictable_tokens") <= 21


def hashes(events, kind):
    return {block for event in events if isinstance(event, kind) for block in event.block_hashes}


def test_kv_events_do_not_tell_of_states(server_and_events, server):
    """sglang #23678: states that go alone are no news to whoever follows the KV."""
    _, events = server_and_events
    server.flush()
    events.take(lambda event: isinstance(event, AllBlocksCleared))
    before = counters(server)["evicted_states"]
    for i in range(60):
        server.generate(tokens(20, 100 + i), 1)
    assert counters(server)["evicted_states"] > before + 10
    server.generate([*tokens(69, 999), RARE], 1)
    few = events.take(lambda event: isinstance(event, BlockStored) and RARE in event.token_ids)
    assert not hashes(few, BlockRemoved)
    for i in range(TOKENS // 2000 + 2):
        server.generate(tokens(2000, 300 + i), 1)
    server.flush()
    many = events.take(lambda event: isinstance(event, AllBlocksCleared))
    removed = hashes(many, BlockRemoved)
    assert removed and removed <= hashes(few, BlockStored) | hashes(many, BlockStored)

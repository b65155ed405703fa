"""Data parallelism: every replica has a cache of its own."""

import pytest
from comparison import Comparison
from cpu_server import launch
from crowding import ENVIRONMENT, OURS
from workload import prompts, run, sharing

from sglang_hybrid.cli.server import Server

PAGE = 16
FLAGS = [
    *OURS,
    *("--dp-size", "2", "--schedule-policy", "lpm"),
    *("--mamba-radix-cache-strategy", "extra_buffer_lazy", "--page-size", str(PAGE)),
    *("--max-mamba-cache-size", "24", "--max-total-tokens", "4096"),
    *("--chunked-prefill-size", "128"),
]


@pytest.fixture(scope="module")
def replicas(model, tmp_path_factory):
    """A server with two of them."""
    log = tmp_path_factory.mktemp("replicas") / "server.log"
    environment = {**ENVIRONMENT, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with launch(model, None, *FLAGS, log=log, environment=environment) as server:
        yield server
        server.flush()
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]


def status(server) -> list[dict]:
    """Of the cache of each replica, in their order."""
    return Server(server.url, None, 60).caches()


def test_replicas_share_nothing(replicas):
    replicas.flush()
    known = 250 - 250 % PAGE
    before = [each["counters"]["requests"] for each in status(replicas)]
    served = [Comparison(replicas, options={"routed_dp_rank": rank}) for rank in (0, 1)]
    for rank, count in ((0, 4), (1, 3)):
        for i in range(count):
            served[rank].ask(sharing(250, i), 4)
    assert [answer.hit for answer in served[0].answers] == [0, 128, known, known]
    assert [answer.hit for answer in served[1].answers] == [0, 128, known]
    for _ in range(5):  # the replicas answer in any order
        found = status(replicas)
        assert [each["dp_rank"] for each in found] == [0, 1]
        after = [each["counters"]["requests"] for each in found]
        assert [now - then for now, then in zip(after, before, strict=True)] == [4, 3]
    for comparison in served:
        comparison.check()


def test_mixed_load_over_both(replicas):
    """In pools that are too small for it; SGLang's checks run whenever a replica is idle."""
    replicas.flush()
    before = [each["counters"] for each in status(replicas)]
    work = prompts()[:120]
    answers = run(replicas, work)
    assert [len(answer["output_ids"]) for answer in answers] == [length for _, length in work]
    after = [each["counters"] for each in status(replicas)]
    for now, then in zip(after, before, strict=True):
        assert now["requests"] > then["requests"] and now["hit_tokens"] > then["hit_tokens"]
        assert now["evicted_states"] > then["evicted_states"]

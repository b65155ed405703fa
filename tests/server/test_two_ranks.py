"""Two tensor-parallel ranks under SGLang's rank-consensus checker."""

import random

import pytest
import requests
from comparison import Comparison
from cpu_server import launch
from workload import counters, sharing

FLAGS = [
    *("--tp-size", "2", "--cache", "hybrid-marconi"),
    *("--cache-config", '{"tuner_window": 10, "min_gain_tokens": 32}'),
    *("--max-mamba-cache-size", "24", "--max-total-tokens", "4096"),
    *("--max-running-requests", "2", "--chunked-prefill-size", "256"),
]
ENVIRONMENT = {
    "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
}
DIVERGENCE = "Found rank divergence"


def phases(seed):
    """Prompts whose best arm changes: long prefixes come back, then only short ones do."""
    rng = random.Random(seed)

    def tokens(count):
        return [rng.randrange(32, 127) for _ in range(count)]

    for phase in range(4):
        shared = [tokens(400 if phase % 2 == 0 else 70) for _ in range(8)]
        for _ in range(20):
            yield [*rng.choice(shared), *tokens(rng.randrange(20, 60))]
            if phase % 2:
                yield tokens(400)


def tuning(server):
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    return info["internal_states"][0]["hybrid_marconi"]["tuning"]


def test_two_ranks_tune_and_evict_alike(model, tmp_path, compiled_replay):
    log = tmp_path / "ranks.log"
    with launch(model, None, *FLAGS, log=log, environment=ENVIRONMENT) as server:
        for prompt in phases(1):
            server.generate(prompt, 4)
        assert counters(server)["evicted_states"] > 50
        assert sum(tuning(server)["switches"].values()) >= 1
        server.flush()
        comparison = Comparison(server)
        for shared in (65, 250):
            for i in range(4):
                comparison.ask(sharing(shared, i), 4)
            assert [answer.hit for answer in comparison.answers[-2:]] == [shared] * 2
        comparison.check()
    text = log.read_text(errors="replace")
    assert DIVERGENCE not in text
    assert "hybrid-marconi" in text and "Traceback" not in text


def test_a_rank_that_errs_is_found(model, tmp_path):
    log = tmp_path / "differs.log"
    program = [__file__.replace("test_two_ranks.py", "rank_differs.py")]
    with (
        launch(model, None, *FLAGS, log=log, environment=ENVIRONMENT, program=program) as server,
        pytest.raises(requests.RequestException),
    ):
        for prompt in phases(1):
            server.generate(prompt, 4)
    text = log.read_text(errors="replace")
    assert DIVERGENCE in text and "hybrid-marconi evicts" in text

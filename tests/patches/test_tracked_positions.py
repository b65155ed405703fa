"""A server from the patched tree saves several states in one prefill, where they are wanted."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from comparison import Comparison
from cpu_server import launch
from workload import hit, sharing, tokens

from sglang_hybrid.core import track_plan

pytestmark = pytest.mark.patches


@dataclass(frozen=True)
class Mode:
    """A value of ``--mamba-prefill-tracking``.

    Attributes:
        grid: the states that a prefill keeps lie on its multiples.
        rest: tokens at the end of a prefill that its last state leaves out at least.
    """

    name: str
    grid: int
    rest: int

    def branch(self, depth: int) -> int:
        return depth - depth % self.grid

    def tail(self, end: int) -> int:
        return self.branch(end - self.rest)


MODES = (Mode("multi", grid=64, rest=0), Mode("exact", grid=1, rest=1))


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.name)
def served(request, model, patched_tree, tmp_path_factory):
    """A server of the patched tree without the plugin's cache, and its mode."""
    log = tmp_path_factory.mktemp("log") / f"{request.param.name}.log"
    flags = ["--mamba-radix-cache-strategy", "extra_buffer", "--chunked-prefill-size", "512"]
    flags += ["--mamba-prefill-tracking", request.param.name, "--enable-mixed-chunk"]
    flags += ["--max-mamba-cache-size", "40", "--max-total-tokens", "8192"]
    flags += ["--mamba-admission-config", '{"ghost_forks": true}', "--enable-metrics"]
    environment = {"PYTHONPATH": f"{patched_tree}/python"}
    environment |= {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}
    with launch(model, None, *flags, log=log, environment=environment) as server:
        yield server, request.param
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]


def test_the_plan_is_core_s(patched_tree):
    """The same file but for where it may import from."""
    there = patched_tree / "python/sglang/srt/mem_cache/state_tracking/track_plan.py"
    assert there.read_text() == Path(track_plan.__file__).read_text()


def test_one_prefill_keeps_branch_and_tail(served):
    server, mode = served
    server.flush()
    comparison = Comparison(server)
    prompts = [sharing(250, i, own=150) for i in range(3)]
    hits = [comparison.ask(prompt, 4).hit for prompt in prompts]
    assert hits == [0, 0, mode.branch(250)]
    for prompt in prompts[:2]:
        assert comparison.ask([*prompt, 40, 41], 4).hit == mode.tail(400)
    comparison.check()


def metric(server, name: str) -> float:
    """Sum over the labels of a counter ``sglang:mamba_<name>_total``."""
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    pattern = rf"^sglang:mamba_{name}_total{{.*}} (\S+)$"
    return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))


def test_a_fork_is_remembered_without_its_kv(served):
    server, _ = served
    server.flush()
    comparison = Comparison(server)
    comparison.ask(sharing(250, 0, own=150), 4)
    evicted = metric(server, "evicted_states")
    for seed in range(3):
        server.generate(tokens(3000, seed), 1)
    assert metric(server, "evicted_states") > evicted
    assert comparison.ask(sharing(250, 1, own=150), 4).hit == 0
    lost = metric(server, "lost_tokens")
    # Of a fork inside a page of 64 tokens only its beginning is known.
    assert comparison.ask(sharing(250, 2, own=150), 4).hit == 192
    assert metric(server, "lost_tokens") == lost + 250 - 192
    comparison.check()


def test_prompts_of_one_batch(served):
    server, mode = served
    server.flush()
    comparison = Comparison(server)
    comparison.ask(sharing(300, 0), 4)
    prompts = [sharing(300, i, own=70 + 13 * i) for i in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda prompt: server.generate(prompt, 4), prompts))
    for i, prompt in enumerate(prompts):
        # A chunk that ends where the batch is full shifts the grid.
        tail = comparison.ask([*prompt, 50 + i], 4).hit
        assert mode.tail(len(prompt)) - mode.grid < tail < len(prompt)
    assert comparison.ask(sharing(300, 9), 4).hit == mode.branch(300)
    comparison.check()


def test_chunks_of_a_long_prompt(served):
    server, mode = served
    server.flush()
    comparison = Comparison(server)
    shared = 1100
    hits = [comparison.ask(sharing(shared, i, own=333), 4).hit for i in range(3)]
    # The first prompt has left the states at the ends of its chunks of 512.
    assert hits == [0, mode.tail(1024), mode.branch(shared)]
    comparison.check()


def test_decoding_beside_a_prefill(served):
    """With mixed chunks the rows that decode lie in the same forward."""
    server, mode = served
    server.flush()
    comparison = Comparison(server)
    comparison.ask(sharing(250, 0), 4)
    decoding = threading.Thread(target=server.generate, args=(tokens(40, 7), 300))
    decoding.start()
    answer = comparison.ask(sharing(250, 1, own=500), 4)
    decoding.join()
    assert answer.hit == 0
    assert comparison.ask(sharing(250, 2), 4).hit == mode.branch(250)
    comparison.check()


def test_aborted_prefills_lose_no_slot(served):
    server, mode = served
    server.flush()
    server.generate(sharing(700, 0, own=20), 1)

    def aborted(i):
        body = {"input_ids": sharing(700, i, own=3000), "rid": f"abort-{i}"}
        body["sampling_params"] = {"max_new_tokens": 64, "ignore_eos": True}
        sent = threading.Thread(
            target=requests.post, args=(f"{server.url}/generate",), kwargs={"json": body}
        )
        sent.start()
        time.sleep(0.05 * i)  # in the queue, within a chunk, between two
        requests.post(f"{server.url}/abort_request", json={"rid": f"abort-{i}"}, timeout=60)
        sent.join()

    for i in range(1, 8):
        aborted(i)
    server.flush()  # which, like the idle scheduler, fails where slots are missing
    # All slots are there: more states than the pool has pass through it.
    for i in range(60):
        assert server.generate(tokens(70, 100 + i), 1)["meta_info"]["cached_tokens"] <= 1
    assert hit(server, [*tokens(70, 159), 60]) == mode.tail(70)

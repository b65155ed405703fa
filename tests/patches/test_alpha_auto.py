"""Two ranks of a server from the patched tree put another alpha in force while they serve."""

import re
import time
from pathlib import Path

import psutil
import pytest
from comparison import Comparison
from cpu_server import launch
from workload import tokens

pytestmark = pytest.mark.patches

DEADLINE_SECONDS = 240
"""For a process of the lowest priority on a busy machine."""


@pytest.fixture(scope="module")
def served(model, patched_tree, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "auto.log"
    flags = ["--tp-size", "2", "--radix-eviction-policy", "marconi"]
    flags += ["--radix-eviction-policy-config", '{"alpha": "auto"}']
    flags += ["--mamba-radix-cache-strategy", "extra_buffer"]
    flags += ["--max-mamba-cache-size", "20", "--max-total-tokens", "8192"]
    environment = {"PYTHONPATH": f"{patched_tree}/python"}
    environment |= {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}
    environment |= {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}
    environment |= {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with launch(model, None, *flags, log=log, environment=environment) as server:
        yield server
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]
        assert "Found rank divergence" not in text


def requests_of_talks(count: int, first: int):
    """Short prompts that come back at once among long ones that never do."""
    talks = []
    for i in range(first, first + count):
        if i % 3 == 0:
            yield tokens(900, 10_000 + i)
        elif i % 3 == 1:
            talks.append(tokens(140, 20_000 + i))
            yield talks[-1]
        else:
            yield [*talks[max(0, len(talks) - 4)], *tokens(70, 30_000 + i)]


def logged(log: Path, pattern: str) -> list[str]:
    return re.findall(rf"State eviction: {pattern}", log.read_text(errors="replace"))


def tuners(server) -> list[psutil.Process]:
    processes = psutil.Process(server.pid).children(recursive=True)
    return [each for each in processes if "state_eviction.tuner" in " ".join(each.cmdline())]


def test_another_alpha_comes_into_force(served):
    sent, deadline = 0, time.monotonic() + DEADLINE_SECONDS
    (tuner,) = tuners(served)  # of two ranks, the one that reads requests has it
    while not (decided := logged(served.log, "(.* -> .*)")):
        assert time.monotonic() < deadline, "nothing was decided"
        for prompt in requests_of_talks(30, sent):
            served.generate(prompt, 1)
        sent += 30
    assert re.match(r"marconi, alpha 1 -> ", decided[0])
    tuner.kill()
    comparison = Comparison(served)
    answers = [comparison.ask(prompt, 2) for prompt in requests_of_talks(60, sent)]
    assert sum(answer.hit for answer in answers) > 0
    comparison.check()
    # Its flushes began windows anew, and it is the next full one that finds nobody.
    sent, deadline = sent + 60, time.monotonic() + DEADLINE_SECONDS
    while not (failed := logged(served.log, ".* has failed .* the policy in force stays")):
        assert time.monotonic() < deadline, "nobody has missed the process"
        for prompt in requests_of_talks(30, sent):
            served.generate(prompt, 1)
        sent += 30
    assert len(failed) == 1

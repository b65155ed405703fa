"""A server that tunes itself: decisions reach the cache, and failures reach nobody."""

import random
import signal
import time

import psutil
import pytest
import requests
import scrape
from cpu_server import launch

from sglang_hybrid.cli import main

WINDOW = 10
FLAGS = [
    *("--cache", "hybrid-marconi"),
    *("--cache-config", f'{{"tuner_window": {WINDOW}, "min_gain_tokens": 32, "strict": true}}'),
    *("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule"),
    *("--max-mamba-cache-size", "12", "--max-total-tokens", "4096", "--max-running-requests", "2"),
    *("--chunked-prefill-size", "256", "--enable-metrics"),
]


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory, compiled_replay):
    log = tmp_path_factory.mktemp("log") / "tuned.log"
    with launch(model, None, *FLAGS, log=log) as server:
        yield server
        assert "Traceback" not in log.read_text(errors="replace")
        process = shadow_process(server)
    # `launch` kills the server; what it started must not outlive it.
    wait_for(lambda: process is None or not process.is_running(), "it outlived its server")


def tokens(rng, count):
    return [rng.randrange(32, 127) for _ in range(count)]


def status(server) -> dict:
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    return info["internal_states"][0]["hybrid_marconi"]["tuning"]


def wait_for(condition, what: str):
    """The first true result of ``condition``."""
    deadline = time.monotonic() + 240
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return result


def serve(server, windows: int, seed: int) -> None:
    """So many windows of requests: eight prefixes come back among prompts that do not."""
    rng = random.Random(seed)
    shared = [tokens(rng, 300) for _ in range(8)]
    for i in range(windows * WINDOW):
        start = rng.choice(shared) if i % 3 else []
        assert server.generate(start + tokens(rng, 50), 2)["output_ids"]


def shadow_process(server) -> psutil.Process | None:
    """The running background process of ``server``, if there is one."""
    port = int(server.url.rsplit(":", 1)[1])
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "sglang_hybrid.shadow" in command and any(
            str(port) in parent.cmdline() for parent in process.parents()
        ):
            return process
    return None


def test_windows_are_scored_and_an_arm_comes_into_force(tuned):
    for seed in range(6):
        serve(tuned, 4, seed)
        windows = wait_for(lambda: status(tuned)["windows"], "no window was scored")
        if status(tuned)["switches"]:
            break
    state = status(tuned)
    assert state["process"] == "running" and windows >= 1
    assert state["mode"] == "auto" and state["arm"] in state["scores"]
    assert state["predicted_flops"] > 0 and state["realised_flops"] > 0
    assert sum(state["switches"].values()) <= state["windows"]
    log = tuned.log.read_text(errors="replace")
    assert log.count("(from request ") == sum(state["switches"].values())


def test_every_query_of_the_dashboard_is_answered(tuned):
    serve(tuned, 1, 40)
    wait_for(lambda: status(tuned)["predicted_flops"], "no window was scored")
    # Written within a second while the server is idle.
    wait_for(lambda: not scrape.unanswered(tuned), "queries without an answer")


def test_top_shows_the_tuner(tuned, capsys):
    assert main.main(["top", "--url", tuned.url, "--once"]) == 0
    shown = capsys.readouterr().out
    assert status(tuned)["arm"] in shown and "running" in shown and "█" in shown


def test_the_process_holds_neither_torch_nor_a_high_priority(tuned):
    process = wait_for(lambda: shadow_process(tuned), "there is no process")
    assert process.nice() == 19
    assert not [m.path for m in process.memory_maps() if "torch" in m.path or "cuda" in m.path]


def test_serving_goes_on_while_the_process_hangs(tuned):
    process = wait_for(lambda: shadow_process(tuned), "there is no process")
    before = status(tuned)
    process.send_signal(signal.SIGSTOP)
    try:
        serve(tuned, 12, 50)
        hung = status(tuned)
    finally:
        process.send_signal(signal.SIGCONT)
    assert hung["dropped_windows"] > before["dropped_windows"]
    assert hung["arm"] == before["arm"] or hung["windows"] > before["windows"]
    serve(tuned, 1, 51)
    wait_for(lambda: status(tuned)["windows"] > hung["windows"], "it did not recover")


def test_serving_goes_on_when_the_process_dies(tuned):
    process = wait_for(lambda: shadow_process(tuned), "there is no process")
    before = status(tuned)
    process.kill()
    wait_for(lambda: status(tuned)["failures"] > before["failures"], "nobody noticed")
    serve(tuned, 2, 60)
    after = status(tuned)
    assert after["failures"] == before["failures"] + 1
    assert after["arm"] == before["arm"]
    warnings = [
        line
        for line in tuned.log.read_text(errors="replace").splitlines()
        if "shadow" in line and "hybrid-marconi" in line and "exited" in line
    ]
    assert len(warnings) == 1


def test_a_flush_clears_scores_and_record_but_not_the_arm(tuned):
    before = status(tuned)
    tuned.flush()
    after = status(tuned)
    assert not any(after["scores"].values())
    assert after["arm"] == before["arm"]
    info = requests.get(f"{tuned.url}/server_info", timeout=60).json()
    assert info["internal_states"][0]["hybrid_marconi"]["record"] == [0, 0]

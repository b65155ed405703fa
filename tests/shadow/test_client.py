"""The server's end of the shadow process: it never waits, and survives whatever happens there."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psutil import NoSuchProcess, Process, pid_exists

from sglang_hybrid.shadow import client as client_module
from sglang_hybrid.shadow.client import (
    GIVEN_UP_AFTER,
    MAX_BACKLOG,
    MAX_RESTARTS,
    RESTART_AFTER,
    ShadowClient,
)
from sglang_hybrid.shadow.messages import Report, table_from_bytes
from sglang_hybrid.shadow.online import OnlineShadows

from .conversations import records, split
from .test_online import settings

pytestmark = pytest.mark.usefixtures("compiled_replay")

SECONDS = 240


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of ``condition``."""
    deadline = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return result


@contextmanager
def running(known=None, **others) -> Iterator[ShadowClient]:
    client = ShadowClient(known or settings(), **others)
    client.start()
    try:
        yield client
    finally:
        client.close()


def process_of(client: ShadowClient) -> Process:
    link = client._link
    assert link is not None
    return Process(wait_for(lambda: link.process, "no process was started").pid)


def collect(client: ShadowClient, count: int) -> list[Report]:
    reports: list[Report] = []

    def more() -> bool:
        reports.extend(client.poll())
        return len(reports) >= count

    wait_for(more, f"fewer than {count} reports")
    return reports


def failed(client: ShadowClient) -> None:
    wait_for(lambda: client.status()["process"] == "failed", "the failure went unnoticed")


def fake(code: str) -> tuple[str, ...]:
    """A process that does ``code``; `connection` is its end."""
    head = "import sys, os\nfrom multiprocessing.connection import Connection\n"
    head += "connection = Connection(int(sys.argv[1]))\n"
    return sys.executable, "-c", head + textwrap.dedent(code)


def test_reports_are_those_of_the_shadows():
    known = settings()
    parts = split(records(1, 300), 50)
    shadows = OnlineShadows(known)
    with running(known) as client:
        assert all(client.send(part) for part in parts)
        reports = collect(client, len(parts))
        for number, (part, report) in enumerate(zip(parts, reports, strict=True)):
            expected = shadows.step(part)
            assert (report.number, report.generation) == (number, 0)
            assert report.saved == expected.saved
            assert report.hits == expected.hits
            assert report.realised == expected.realised
            assert report.seconds > 0
        for arm, table in shadows.tables().items():
            assert (table_from_bytes(reports[-1].tables[arm]).cells == table.cells).all()
        assert client.status() == {
            "process": "running",
            "backlog": 0,
            "windows": 6,
            "dropped_windows": 0,
            "failures": 0,
            "stalls": 0,
            "restarts": 0,
            "last_error": None,
        }


def test_a_search_is_answered_apart_from_windows():
    known = settings(is_bootstrap=True)
    window = records(2, 100)
    shadows = OnlineShadows(known)
    shadows.step(window)
    with running(known) as client:
        client.send(window)
        assert client.search()
        collected, found = collect(client, 2)
    assert (collected.saved, collected.is_search) == ((), False)
    assert (found.saved, found.is_search) == (shadows.search().saved, True)


def test_reports_from_before_a_reset_are_void():
    known = settings()
    window = records(3, 100)
    with running(known) as client:
        client.send(window)
        client.send(window)
        client.reset()
        client.send(window)
        (report,) = collect(client, 1)
        assert (report.generation, report.number) == (1, 2)
        assert report.saved == OnlineShadows(known).step(window).saved
        assert client.status()["backlog"] == 0
        assert client.poll() == []


def test_the_process_is_polite_and_needs_neither_torch_nor_sglang():
    with running() as client:
        process = process_of(client)
        client.send(records(1, 10))
        collect(client, 1)
        assert process.nice() == 19
        paths = [part.path for part in process.memory_maps()]
        assert not [path for path in paths if "torch" in path or "cuda" in path]
        environment = process.environ()
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert environment["NUMBA_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "1"
        assert os.getsid(process.pid) == process.pid


def test_the_shadow_modules_import_neither_torch_nor_sglang():
    code = (
        "import sys, sglang_hybrid.shadow.process, sglang_hybrid.shadow.client\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'sglang')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_process_that_is_killed_is_noticed_once_and_started_anew_later(caplog):
    window = records(1, 20)
    with running() as client:
        client.send(window)
        collect(client, 1)
        process_of(client).kill()
        failed(client)
        with caplog.at_level(logging.WARNING):
            assert [client.send(window) for _ in range(RESTART_AFTER)] == [False] * RESTART_AFTER
            assert client.poll() == []
        state = client.status()
        assert (state["failures"], state["dropped_windows"]) == (1, RESTART_AFTER)
        assert "exited (status -9)" in state["last_error"]
        assert client.send(window)  # starts it
        (report,) = collect(client, 1)
        assert report.saved == OnlineShadows(settings()).step(window).saved
        assert (client.status()["process"], client.restarts) == ("running", 1)
    warnings = [r for r in caplog.records if "shadow process" in r.getMessage()]
    assert len(warnings) == 1 and "is started anew later" in warnings[0].getMessage()


def test_a_process_that_keeps_failing_is_given_up(caplog):
    window = records(1, 5)
    with running(command=fake("sys.exit('no luck today')")) as client:
        for _ in range(MAX_RESTARTS):
            failed(client)
            sent = [client.send(window) for _ in range(RESTART_AFTER + 1)]
            assert sent == [False] * RESTART_AFTER + [True]
        failed(client)
        assert not any(client.send(window) for _ in range(5 * RESTART_AFTER))
        state = client.status()
    assert state["failures"] == 1 + MAX_RESTARTS
    assert state["last_error"] == "exited (status 1): no luck today"
    assert caplog.text.count("no luck today") == 1 + MAX_RESTARTS
    assert caplog.text.count("It is not started again.") == 1


def test_a_process_that_hangs_costs_windows_and_nothing_else(caplog):
    window = records(1, 20)
    with running() as client:
        client.send(window)
        collect(client, 1)
        process = process_of(client)
        process.suspend()
        sent = [client.send(window) for _ in range(MAX_BACKLOG + 5)]
        assert sent == [True] * MAX_BACKLOG + [False] * 5
        assert client.poll() == []
        state = client.status()
        assert (state["process"], state["backlog"]) == ("running", MAX_BACKLOG)
        assert (state["dropped_windows"], state["stalls"]) == (5, 1)
        process.resume()
        collect(client, MAX_BACKLOG)
        assert client.send(window)
        collect(client, 1)
        assert client.status()["windows"] == MAX_BACKLOG + 2
    assert caplog.text.count(f"{MAX_BACKLOG} windows behind") == 1


def test_sending_to_a_process_that_never_reads_returns():
    window = records(1, 2000)  # more than a pipe takes
    assert len(window.to_bytes()) > 2**18
    with running(command=fake("import signal; signal.pause()")) as client:
        process_of(client)
        sent = [client.send(window) for _ in range(MAX_BACKLOG + 2)]
        assert sent == [True] * MAX_BACKLOG + [False] * 2
        process = process_of(client)
        client.close()
        wait_for(lambda: not alive(process), "it was not ended")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("connection.send_bytes(b'garbage')", "sent what is no report (UnpicklingError"),
        ("connection.send('a string')", "sent what is no report (ValueError: a report is a str)"),
        ("os.write(int(sys.argv[1]), b'\\x7f' * 100)", "sent what is no report (OSError"),
        ("import os; os.kill(os.getpid(), 11)", "exited (status -11)"),
    ],
)
def test_garbage_is_a_failure(code, message, caplog):
    with running(command=fake(code + "\nimport time; time.sleep(60)")) as client:
        failed(client)
        assert message in client.status()["last_error"]
        assert client.poll() == [] and not client.send(records(1, 5))
    assert len(caplog.records) == 1


def test_a_damaged_window_is_left_out(monkeypatch):
    window = records(1, 50)
    message = client_module.window_message

    def damaged(window, generation, number):
        whole = message(window, generation, number)
        return whole[:-8] if number == 1 else whole

    monkeypatch.setattr(client_module, "window_message", damaged)
    with running() as client:
        for _ in range(3):
            client.send(window)
        reports = collect(client, 2)
        assert [report.number for report in reports] == [0, 2]
        state = client.status()
    assert (state["failures"], state["backlog"], state["windows"]) == (0, 0, 2)
    assert "bytes instead of" in state["last_error"]


def test_a_command_that_does_not_exist_is_a_failure(caplog):
    with running(command=("/no/such/program",)) as client:
        failed(client)
        assert "could not be started" in client.status()["last_error"]
    assert len(caplog.records) == 1


def test_without_a_start_there_is_nothing():
    client = ShadowClient(settings())
    assert not client.send(records(1, 5))
    assert (client.poll(), client.search()) == ([], False)
    client.reset()
    client.close()
    assert client.status()["process"] == "off"
    assert client.dropped_windows == 1


def test_close_ends_the_process_for_good():
    window = records(1, 5)
    with running() as client:
        process = process_of(client)
        client.close()
        wait_for(lambda: not alive(process), "it was not ended")
        assert not any(client.send(window) for _ in range(3 * RESTART_AFTER))
        assert client.status()["process"] == "off"


def test_closed_while_it_starts():
    client = ShadowClient(settings())
    client.start()
    link = client._link
    client.close()
    assert link is not None
    process = wait_for(lambda: link.process, "it was never started")
    wait_for(lambda: process.returncode is not None, "it was not ended")


PARENT = """
import sys
from tests_settings import settings
from sglang_hybrid.shadow.client import ShadowClient
client = ShadowClient(settings())
client.start()
while client._link.process is None:
    pass
print(client._link.process.pid, flush=True)
sys.stdin.read()
"""


def test_the_process_ends_with_its_parent(tmp_path):
    known = settings()
    (tmp_path / "tests_settings.py").write_text(
        f"from sglang_hybrid.shadow.messages import Settings\n"
        f"def settings():\n    return Settings.from_bytes({known.to_bytes()!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert parent.stdout is not None and parent.stdin is not None
    child = Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not alive(child), "it outlived its parent")
    parent.stdout.close()
    parent.stdin.close()


def alive(process: Process) -> bool:
    """Whether it runs; one that has ended may wait for its parent to notice."""
    try:
        return pid_exists(process.pid) and process.is_running() and process.status() != "zombie"
    except NoSuchProcess:
        return False


def test_a_process_that_never_answers_is_ended():
    with running() as client:
        process = process_of(client)
        process.suspend()
        part = records(1, 2)
        for _ in range(MAX_BACKLOG + GIVEN_UP_AFTER + 1):
            client.send(part)
        wait_for(lambda: client.status()["failures"], "nobody noticed")
        assert not pid_exists(process.pid) or process.status() == "zombie"
        assert client.stalls == 1

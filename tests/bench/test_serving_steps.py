import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.serving import arms, steps
from bench.serving.runs import GUARD, CpuServer

STOCK, AUTO = arms.choose(["stock-python", "auto"], None, ())[0]


def contender(arm, decode, prefill=1.0):
    one = steps.Contender(arm, CpuServer("", Path(), 0), np.random.default_rng(0))
    one.seconds = {"decode": [decode, 10 * decode, decode], "prefill": [prefill] * 3}
    return one


def rows(*contenders):
    lines = steps.report([STOCK, AUTO], contenders).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_difference_that_all_pairs_of_servers_show_is_stated():
    stock, auto = rows(
        contender(STOCK, 1.0), contender(AUTO, 1.20),
        contender(STOCK, 2.0), contender(AUTO, 2.42),
    )  # fmt: skip
    assert stock[1:4] == ["2.00", "1.000 1.000", "none"]
    assert auto[2] == "1.200 1.210"
    assert auto[3] == "+20.5"
    assert auto[6] == "none"


def test_servers_that_disagree_show_none():
    _, auto = rows(
        contender(STOCK, 1.0), contender(AUTO, 1.1),
        contender(STOCK, 1.0), contender(AUTO, 0.97),
    )  # fmt: skip
    assert auto[2:4] == ["1.100 0.970", "none"]


@contextmanager
def guarded_process():
    command = [sys.executable, GUARD, "-c", "import time\nwhile True: time.sleep(0.01)"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_runs_only_in_its_turn_and_its_guard_always():
    with guarded_process() as guard:
        wait_for(guard.children)
        (served,) = guard.children()
        one = steps.Contender(AUTO, CpuServer("", Path(), guard.pid), np.random.default_rng(0))
        with one.running():
            assert served.status() != psutil.STATUS_STOPPED
        wait_for(lambda: served.status() == psutil.STATUS_STOPPED)
        assert guard.status() != psutil.STATUS_STOPPED
        with one.running():
            wait_for(lambda: served.status() != psutil.STATUS_STOPPED)
    wait_for(lambda: not served.is_running())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--arms", "auto"], "at least two"),
        (["--arms", "auto,none"], "'none' is not known"),
        (["--model", "/nowhere"], "no /nowhere"),
    ],
)
def test_what_cannot_run_is_refused(argv, said, capsys):
    assert steps.main(argv) == 2
    assert said in capsys.readouterr().err

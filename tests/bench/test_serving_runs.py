"""Arms, their order, command lines, and results that are kept."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving_cases import ARMS, workload

from bench.serving import arms, choice, plan, workloads
from bench.serving.__main__ import main
from bench.serving.runs import GUARD, Options, RunFailed, drive, error_end, last_error
from bench.serving.store import Store
from bench.serving.workloads import Load

OPTIONS = Options(
    "model", ("--tp-size", "2"), {"pressure": ("--x", "1"), "ample": ()}, 0.8, 8, {}, 3, 60, 60
)
SETTINGS = {"common": {"model": "m"}, "arms": {"auto": {"flags": []}}, "workloads": {"a": {"n": 1}}}
URL = "http://127.0.0.1:1"


# ---- arms ----


def test_arms_differ_in_the_cache_alone():
    flags = {name: OPTIONS.server_flags(arm, "pressure") for name, arm in ARMS.items()}
    common = flags["stock-rust"]
    assert common == flags["stock-python"]
    assert common[-4:] == ["--tp-size", "2", "--x", "1"]
    assert all(of_arm[: len(common)] == common for of_arm in flags.values())
    own = {name: of_arm[len(common) :] for name, of_arm in flags.items()}
    assert own["stock-cap"] == ["--mamba-max-states-per-path", "3"]
    for policy in ("lru", "marconi", "auto"):
        assert own[policy][:3] == ["--cache", "hybrid-marconi", "--cache-config"]
        assert json.loads(own[policy][3]) == {"policy": policy}
    cores = {name: arm.environment.get(arms.TREE_CORE) for name, arm in ARMS.items() if arm.stock}
    assert cores == {"stock-rust": "rust", "stock-python": "python", "stock-cap": "rust"}


def test_the_patched_tree_comes_first_on_the_path(tmp_path):
    chosen, left_out = arms.choose(["patched", "auto"], None, [])
    assert [arm.name for arm in chosen] == ["auto"]
    assert left_out == {"patched": "no --patched-tree was given"}
    with pytest.raises(ValueError, match=r"build it with `python patches/tree\.py"):
        arms.choose(["patched"], tmp_path, [])
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    (arm,), left_out = arms.choose(["patched"], tmp_path, ["--radix-eviction-policy", "utility"])
    assert arm.environment == {"PYTHONPATH": str(tmp_path / "python")}
    assert arm.flags == ("--radix-eviction-policy", "utility")
    assert not left_out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--arms", "stok"], "arm 'stok' is not known; allowed: stock-rust"),
        (["--workloads", "prefix"], "workload 'prefix' is not known; allowed: branching"),
        (["--set", "prefixes.goups=3"], "no such field; allowed: output, groups"),
        (["--set", "prefixes.groups=0"], "not a number above 0"),
        (["--set", "branching.turns=4"], "not two numbers, as 100-400"),
        (["--set", "groups=4"], "not WORKLOAD.FIELD=VALUE"),
        (["--rate", "prefixes=fast"], "not WORKLOAD=ARRIVALS_PER_SECOND"),
        (["--workloads", "chat"], "give the folder that holds it with --traces"),
        (["--traces", "/nowhere"], "--traces /nowhere does not exist"),
        (["--size", "full"], "--size full needs --pressure-flags"),
        (["--seeds", "1,1"], "not distinct numbers"),
        (["--share", "1.2"], "not between 0 and 1"),
    ],
)
def test_wrong_arguments_are_named(argv, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main([*argv, "--model", str(tmp_path), "--plan"])
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_plan_starts_nothing(capsys, tmp_path):
    out = tmp_path / "out"
    assert main(["--short", "--model", str(tmp_path), "--out", str(out), "--plan"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--mamba-max-states-per-path 3" in shown
    assert "6. seed 1, stock-rust, pressure: branching, prefixes" in shown
    assert not out.exists()


# ---- order ----


def test_arms_take_turns_and_each_seed_begins_with_another():
    of = [ARMS[name] for name in ("stock-rust", "lru", "auto")]
    made = list(plan.blocks(of, [workload("prefixes"), workload("ample")], [5, 6, 7, 8]))
    pressure = [block for block in made if block.pools == "pressure"]
    order = ["stock-rust lru auto", "lru auto stock-rust", "auto stock-rust lru"]
    order.append(order[0])
    for number, seed in enumerate([5, 6, 7, 8]):
        names = [block.arm.name for block in pressure if block.seed == seed]
        assert " ".join(names) == order[number]
    assert len(made) == 4 * 2 * 3
    assert {w.name for block in pressure for w in block.workloads} == {"prefixes"}


# ---- what the drivers are told ----


def arguments(command):
    """Flags with their values."""
    pairs = zip(command, [*command[1:], ""], strict=True)
    return {flag: value for flag, value in pairs if flag.startswith("--")}


def test_generated_prefixes_arrive_at_the_rate(tmp_path):
    out = tmp_path / "out.json"
    command = workload("prefixes", groups=3, prompts=5).command(URL, out, 9, Load(2.5), out)
    given = arguments(command)
    assert command[:2] == ["-m", "sglang.bench_serving"]
    assert given["--dataset-name"] == "generated-shared-prefix"
    assert (given["--request-rate"], given["--seed"]) == ("2.5", "9")
    assert (given["--gsp-num-groups"], given["--num-prompts"]) == ("3", "15")
    assert "--cache-report" in given and "--output-details" in given
    assert "--max-concurrency" not in given


def test_a_closed_loop_has_no_rate(tmp_path):
    out = tmp_path / "out.json"
    given = arguments(workload("prefixes").command(URL, out, 0, Load(closed=8), out))
    assert (given["--request-rate"], given["--max-concurrency"]) == ("inf", "8")
    given = arguments(workload("branching").command(URL, out, 0, Load(closed=8), out))
    assert (given["--pace"], given["--concurrency"]) == ("closed", "8")
    assert "--think" not in given


def test_sessions_are_replayed_with_their_own_replies(tmp_path):
    out = tmp_path / "out.json"
    command = workload("branching", think=3.0).command(URL, out, 4, Load(0.5), out)
    given = arguments(command)
    assert Path(command[0]).name == "replay_chat.py" and Path(command[0]).exists()
    assert (given["--history"], given["--pace"], given["--rate"]) == ("own", "poisson", "0.5")
    assert (given["--think"], given["--seed"]) == ("3.0", "4")


def test_mooncake_is_slowed_down_to_the_rate(tmp_path):
    data = tmp_path / "mooncake.jsonl"
    record = {"hash_ids": [1], "output_length": 4, "input_length": 9}
    lines = [json.dumps({**record, "timestamp": 500 * number}) for number in range(21)]
    data.write_text("\n".join(lines))  # 10 s
    mooncake = workloads.MooncakeTrace(requests=21, source=data)
    given = arguments(mooncake.command(URL, data, 0, Load(0.7), data))
    assert float(given["--mooncake-slowdown-factor"]) == pytest.approx(3)
    assert given["--dataset-path"] == str(data)
    given = arguments(mooncake.command(URL, data, 0, Load(closed=4), data))
    assert float(given["--mooncake-slowdown-factor"]) == 0
    assert given["--max-concurrency"] == "4"


def test_agentic_traces_go_through_the_chat_endpoint(tmp_path):
    agentic = workload("agentic-trace")
    given = arguments(agentic.command(URL, tmp_path / "t.json", 0, Load(1.0), tmp_path / "o.json"))
    assert (given["--backend"], given["--dataset-name"]) == ("sglang-oai-chat", "agentic-trace")
    assert given["--num-prompts"] == str(agentic.arrivals())


def test_sizes_and_fields_can_be_changed():
    changes = {"branching": {"turns": "2-3", "think": "0"}, "prefixes": {"shortest": "0.9"}}
    branching, prefixes = choice.choose(["prefixes", "branching"], "full", {}, changes)[0]
    assert (branching.turns, branching.think, branching.output) == ((2, 3), 0.0, 256)
    assert (prefixes.shortest, prefixes.prefix) == (0.9, 8192)


# ---- results that are kept ----


def run_of(workload, arm, seed, state="done"):
    return {"workload": workload, "arm": arm, "seed": seed, "state": state}


def test_a_folder_goes_on_where_it_stopped(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.write(run_of("a", "auto", 0))
    store.write(run_of("a", "auto", 1, "failed"))
    store.keep_rate("a", {"rate": 2.0})
    again = Store(tmp_path, SETTINGS)
    assert again.done("a", "auto", 0)
    assert not again.done("a", "auto", 1)  # one that failed is tried again
    assert not again.done("a", "auto", 2)
    assert again.rates() == {"a": {"rate": 2.0}}
    assert [result["state"] for result in again.results()] == ["done", "failed"]


def test_a_folder_of_other_settings_is_refused(tmp_path):
    Store(tmp_path, SETTINGS)
    other = {**SETTINGS, "workloads": {"a": {"n": 2}}}
    with pytest.raises(ValueError, match=r'workloads\.a: {"n": 1}, now {"n": 2}'):
        Store(tmp_path, other)
    with pytest.raises(ValueError, match=r'common\.model: "m", now "other"\n.*another --out'):
        Store(tmp_path, {**SETTINGS, "common": {"model": "other"}})
    with pytest.raises(ValueError, match=r"common\.size: null, now"):
        Store(tmp_path, {**SETTINGS, "common": {"model": "m", "size": "full"}})


def test_arms_and_workloads_may_be_added(tmp_path):
    Store(tmp_path, SETTINGS)
    Store(tmp_path, {**SETTINGS, "arms": {"lru": {"flags": ["x"]}}, "workloads": {"b": {}}})
    kept = json.loads((tmp_path / "settings.json").read_text())
    assert set(kept["arms"]) == {"auto", "lru"} and set(kept["workloads"]) == {"a", "b"}
    with pytest.raises(ValueError, match=r"arms\.lru"):
        Store(tmp_path, {**SETTINGS, "arms": {"lru": {"flags": []}}})


# ---- processes ----


def test_the_end_of_a_log_is_its_last_error(tmp_path):
    log = tmp_path / "server.log"
    lines = [
        "start",
        "server_args=ServerArgs(" + "x" * 10_000,
        "Traceback (most recent call last):",
    ]
    log.write_text("\n".join([*lines, "MemoryError: no room", *["shutting down"] * 40]))
    assert error_end(log).splitlines()[-1] == "MemoryError: no room"
    assert "server_args" not in error_end(log)
    log.write_text("one\n" * 40 + "ready\n")
    assert error_end(log).endswith("one\nready")
    assert last_error(log) == "(no error)"
    assert error_end(tmp_path / "none.log") == "(no log)"


def test_a_driver_that_takes_too_long_is_ended(tmp_path):
    pids = tmp_path / "pid"
    program = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(RunFailed, match="longer than 2 s"):
        drive([sys.executable, "-c", program], tmp_path / "log", 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_guarded_processes_end_with_a_parent_that_is_killed():
    # The guarded process starts another, as a server does.
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, {GUARD!r}, '-c', {program!r}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as started:
        pids = [int(pid) for pid in started.stdout.readline().split()]
        started.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(_running, pids)):
        assert time.monotonic() < deadline, "they live on"
        time.sleep(0.05)


def _running(pid):
    """Neither gone nor a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False

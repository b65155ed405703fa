"""`hybrid-marconi replay`."""

import json
import os
import subprocess
import sys
import threading

import pytest

from sglang_hybrid.cli import main
from sglang_hybrid.sim import load_trace, sweep

TRACE = "gen:shared-prefix?groups=8&prompts=12&system=600&question=90&output=40"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def replay(capsys):
    def call(*arguments, trace=TRACE):
        try:
            status = main.main(["replay", "--trace", trace, "--workers", "1", *arguments])
        except SystemExit as stopped:
            status = stopped.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_it_needs_neither_sglang_nor_torch(tmp_path):
    """Nor a script that guards its main part, even with worker processes."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['sglang', 'torch', 'transformers', 'matplotlib']))\n"
        "from sglang_hybrid.sim import load_trace, sweep\n"
        f"rows = sweep(load_trace({TRACE!r}), 'nemotron-h-8b', budgets=['1GiB'], workers=2)\n"
        "print([row.policy for row in rows])\n"
        "from sglang_hybrid.cli.main import main\n"
        f"sys.exit(main(['replay', '--trace', {TRACE!r}, '--budget', '1GiB', '--bounds']))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['lru', 'utility', 'marconi', 'auto']") == 1
    assert "96 requests" in done.stdout


TUNED = "auto:utility:alpha=0.5"


def test_table_has_the_figures(replay):
    status, out, _ = replay(
        "--budget", "1GiB", "--policy", f"lru,{TUNED}", "--admission", "marconi"
    )
    assert status == 0
    (lru, _) = sweep(
        TRACE, "nemotron-h-8b", policies=["lru", TUNED], admissions=["marconi"], budgets=["1GiB"]
    )
    (row,) = (line for line in out.splitlines() if "lru" in line)
    assert f"{lru.token_hit_rate:.1%}" in row
    assert f"{lru.flops_saved_share:.1%}" in row
    assert "1.00 GiB" in row
    assert "Every token outside the shared prefixes occurs once" in out
    assert "alpha 0.5" in out


def test_links_and_pipes_are_written_to_not_replaced(replay, tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    options = ["--budget", "1GiB", "--policy", "lru", "--json", str(link), "--hits", str(pipe)]
    assert replay(*options)[0] == 0
    reader.join(timeout=60)
    assert link.is_symlink()
    assert json.loads(target.read_text())[0]["policy"] == "lru"
    assert pipe.is_fifo()
    assert read[0].count("hit") == 96
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]


def test_details(replay):
    _, out, _ = replay("--budget", "1GiB", "--policy", "lru")
    assert "By length of prompt" not in out
    _, out, _ = replay("--budget", "1GiB", "--policy", "lru", "--details")
    assert "By length of prompt" in out
    assert "tokens lost to a" in out


def test_json_is_a_list_of_all_rows(replay, tmp_path):
    file = tmp_path / "out.json"
    options = ["--policy", "lru,marconi:alpha=2,none", "--budget", "1GiB,20%", "--bounds"]
    status, _, _ = replay(*options, "--recommend", "--memory", "2GiB", "--json", str(file))
    assert status == 0
    rows = json.loads(file.read_text())
    wanted = [
        "trace",
        "policy",
        "admission",
        "budget_bytes",
        "token_hit_rate",
        "flops_saved_share",
        "alpha",
    ]
    assert all(set(wanted) <= set(row) for row in rows)
    assert [row["policy"] for row in rows][:-1] == [
        "none",
        *(["lru", "marconi:alpha=2"] * 2),
        *("infinite", "bound", "bound", "full-kv"),
    ]
    assert [row["alpha"] for row in rows][:3] == [None, None, 2.0]
    expected = sweep(TRACE, "nemotron-h-8b", policies=["lru"], budgets=["1GiB"])[0]
    assert rows[1] == expected.to_dict()
    assert rows[-1]["recommendation"]["memory_bytes"] == rows[-1]["budget_bytes"] == 2**31
    assert list(tmp_path.iterdir()) == [file]


def test_hits_of_every_request(replay, tmp_path):
    file = tmp_path / "hits.jsonl"
    assert replay("--policy", "lru", "--budget", "1GiB", "--hits", str(file))[0] == 0
    (result,) = sweep(TRACE, "nemotron-h-8b", policies=["lru"], budgets=["1GiB"])
    inputs = load_trace(TRACE).input_len
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"input": int(tokens), "hit": int(hit)}
        for tokens, hit in zip(inputs, result.hits, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["--policy", "lru,utility,marconi:alpha=0.1,marconi:alpha=1,marconi:alpha=4", "--bounds"],
        ["--policy", "lru,auto", "--budget", "1GiB", "--bounds"],
        ["--policy", "sglang", "--admission", "stock", "--ratio", "0.5,2", "--budget", "1GiB"],
        ["--policy", "none"],
    ],
)
def test_plots_are_images(replay, tmp_path, options):
    matplotlib = pytest.importorskip("matplotlib.image")
    file = tmp_path / "out.png"
    assert replay("--budget", "1GiB,2GiB", *options, "--plot", str(file))[0] == 0
    assert file.read_bytes().startswith(PNG)
    image = matplotlib.imread(file)
    assert image.shape[0] > 400 and image.shape[1] > 800
    assert image.std() > 0.05
    assert list(tmp_path.iterdir()) == [file]


def test_plots_in_other_formats(replay, tmp_path):
    file = tmp_path / "out.svg"
    assert replay("--policy", "lru", "--plot", str(file))[0] == 0
    assert "<svg" in file.read_text()[:2000]


def test_recommendation_can_be_pasted(replay):
    status, out, _ = replay("--policy", "lru", "--budget", "1GiB", "--recommend")
    assert status == 0
    assert "--mamba-full-memory-ratio" in out
    (config,) = (line for line in out.splitlines() if "--cache-config" in line)
    json.loads(config.split("'")[1])
    assert "stock SGLang" in out
    assert "too few to choose on some" in out


def test_memory_is_also_the_budget(replay):
    _, out, _ = replay("--policy", "lru", "--memory", "2GiB", "--recommend")
    (row,) = (line for line in out.splitlines() if line.startswith("│ lru"))
    assert "2.00 GiB" in row
    assert "and 2.00 GiB: policy" in out


def test_concurrent_replay_without_arrivals_says_so(replay):
    _, out, _ = replay("--policy", "lru", "--concurrent", "4")
    assert "up to 4 at a time" in out
    assert "tells no arrivals" in out
    _, out, _ = replay("--policy", "lru", "--concurrent", "4", "--arrival", "poisson:5")
    assert "tells no arrivals" not in out


def test_requests_that_do_not_fit_are_told(replay):
    _, out, _ = replay("--policy", "lru", "--budget", "1MiB")
    assert "96 of 96 requests do not fit" in out


def test_list(capsys):
    assert main.main(["replay", "--list"]) == 0
    out = capsys.readouterr().out
    for name in ("utility", "auto", "infinite", "served", "stock", "nemotron-h-8b"):
        assert f" {name} " in out


def test_problems_of_the_file_are_told(replay, tmp_path):
    file = tmp_path / "trace.jsonl"
    good = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant"}]}
    good["messages"][1]["content"] = "Hi"
    lines = [json.dumps(good), "{broken", json.dumps(good), "[also"]
    file.write_text("\n".join(lines))
    status, out, _ = replay("--policy", "lru", trace=str(file))
    assert status == 0
    assert "2 of 4 entries were left out as malformed" in out
    assert "also left out: trace.jsonl:4" in out
    status, _, err = replay("--policy", "lru", "--strict", trace=str(file))
    assert (status, err.count("\n")) == (2, 1)
    assert "trace.jsonl:2" in err


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--policy lur", ["'lur'", "allowed: auto", "did you mean 'lru'"]),
        ("--policy lru,,utility", ["--policy 'lru,,utility'", "remove the comma"]),
        ("--policy marconi:alpha=-1", ["alpha = -1.0", "allowed: a number from 0"]),
        ("--policy bound", ["'bound'", "--bounds"]),
        ("--admission servd", ["'servd'", "did you mean 'served'"]),
        ("--budget 6XB", ["'6XB'", "6GiB"]),
        ("--budget -1GiB", ["--budget"]),
        ("--ratio x", ["--ratio 'x'", "a number"]),
        ("--ratio 0", ["ratio 0", "from 1e-6 to 1e6"]),
        ("--ratio 1e300", ["ratio 1e+300", "from 1e-6 to 1e6"]),
        ("--concurrent 0", ["--concurrent 0", "from 1"]),
        ("--seconds-per-output-token 1", ["without --concurrent"]),
        ("--concurrent 2 --seconds-per-output-token -1", ["-1.0", "from 0 to 3600"]),
        ("--memory 3GiB", ["3GiB", "without --recommend"]),
        ("--recommend --memory 1MB", ["1000000 bytes", "give more memory"]),
        ("--hits h.jsonl", ["--hits h.jsonl", "4 replays", "exactly one"]),
        ("--json /no/such/x.json", ["/no/such/x.json", "make it first"]),
        ("--plot x.txt", ["x.txt", ".png, .svg, .pdf"]),
        ("--plot x.png --json x.png", ["--plot x.png", "another output"]),
        ("--json .", ["--json .", "a folder"]),
        ("--model nope", ["'nope'", "nemotron-h-8b"]),
        ("--kv-dtype int3", ["int3", "bfloat16"]),
        ("--tp 0", ["--tp 0", "from 1"]),
        ("--prefill-time x", ["'x'", "roofline:DEVICE"]),
        ("--prefill-time csv:/no/such.csv", ["/no/such.csv", "check the path"]),
        ("--format x", ["--format 'x'", "mooncake"]),
        ("--tokenizer x", ["'x'", "qwen"]),
        ("--arrival x", ["'x'", "poisson:RATE"]),
        ("--limit 0", ["--limit 0", "from 1"]),
        ("--workers 0", ["--workers 0", "from 1"]),
        ("--bogus", ["--bogus", "--help"]),
    ],
)
def test_wrong_arguments_end_with_one_line(replay, tmp_path, monkeypatch, options, parts):
    monkeypatch.chdir(tmp_path)
    status, out, err = replay(*options.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("hybrid-marconi replay: ")
    assert [part for part in parts if part not in err] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trace", "part"),
    [
        ("gen:nothing", "allowed: article-a"),
        ("/no/such/trace.jsonl", "does not exist"),
        ("gen:shared-prefix?groups=0", "groups 0 is not allowed"),
    ],
)
def test_traces_that_cannot_be_read(replay, trace, part):
    status, _, err = replay(trace=trace)
    assert (status, err.count("\n")) == (2, 1)
    assert part in err


def test_trace_is_needed(capsys):
    assert main.main(["replay"]) == 2
    assert "--trace is missing" in capsys.readouterr().err


def test_trace_is_not_overwritten(replay, tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("{}")
    status, _, err = replay("--json", str(file), trace=str(file))
    assert status == 2
    assert "also the trace" in err
    assert file.read_text() == "{}"


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main(["replay", "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    for option in ("--policy", "--ratio", "--recommend", "--hits", "--gap", "--ssm-dtype"):
        assert option in out

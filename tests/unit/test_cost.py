"""`hybrid-marconi cost`."""

import json
import subprocess
import sys

import pytest

from sglang_hybrid.cli import main
from sglang_hybrid.core.presets import PRESETS, load_model


def cost(capsys, *arguments):
    status = main.main(["cost", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_needs_neither_sglang_nor_torch_nor_numba():
    code = (
        "import sys\n"
        "blocked = ['sglang', 'torch', 'transformers', 'numba', 'numpy', 'pydantic']\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "from sglang_hybrid.cli.main import main\n"
        "sys.exit(main(['cost', '--model', 'paper-7b']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "409" in done.stdout


def test_tables_are_for_people(capsys):
    status, out, _ = cost(
        capsys, "--model", "paper-7b", "--length", "10000", "--block", "16", "--tp", "1"
    )
    assert status == 0
    rows = {}
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")]
        rows[cells[0]] = cells[1:]
    assert rows["attention"][:2] == ["4", "64.00 KiB"]
    assert rows["SSM (paper)"][:3] == ["24", "-", "25.55 MiB"]
    assert rows["MLP"][-1] == "-"
    assert rows["all"][:3] == ["56", "64.00 KiB", "25.55 MiB"]
    assert rows["one checkpoint, in tokens of KV"] == ["409"]
    assert rows["a checkpoint per block of 16 tokens, in KV of the block"] == ["25.5 times"]
    assert rows["10,000 tokens with a checkpoint every 16"][0].startswith("16.20 GiB (15.59 GiB")
    assert rows["10,000 tokens with two checkpoints"][0].startswith("676 MiB (51.09 MiB")
    assert rows["prefill of 10,000 tokens"] == ["137 TFLOP"]
    assert "note: FP16 as in the paper" in out


def test_json_has_exact_numbers(tmp_path, capsys):
    file = tmp_path / "cost.json"
    arguments = ["--model", "paper-7b", "--length", "10000", "--block", "16", "--json", str(file)]
    assert cost(capsys, *arguments)[0] == 0
    report = json.loads(file.read_text())
    model = load_model("paper-7b").costs
    assert report["total"]["state_bytes"] == 26_787_840
    assert report["total"]["kv_bytes_per_token"] == 65_536
    assert report["total"]["prefill_flops"] == model.prefill_flops(10_000)
    assert report["state_tokens"] == 408.75
    assert report["state_per_block_kv"] == 408.75 / 16
    assert report["per_block"]["checkpoints"] == 625
    assert report["per_block"]["bytes"] == 625 * 26_787_840 + 10_000 * 65_536
    assert report["two_checkpoints"]["bytes"] == 2 * 26_787_840 + 10_000 * 65_536
    attention, ssm, mlp = report["layers"]
    assert (attention["count"], ssm["count"], mlp["count"]) == (4, 24, 28)
    assert attention["saved_flops_per_byte"] == 10_000 + 8192
    assert ssm["state_bytes"] == 26_787_840
    assert mlp["saved_flops_per_byte"] is None
    for figure in ("kv_bytes_per_token", "state_bytes", "prefill_flops"):
        assert sum(layer[figure] for layer in report["layers"]) == report["total"][figure]


def test_types_and_shards_are_those_that_were_asked_for(tmp_path, capsys):
    def figures(*arguments):
        file = tmp_path / "cost.json"
        assert cost(capsys, "--model", "nemotron-h-8b", "--json", str(file), *arguments)[0] == 0
        total = json.loads(file.read_text())["total"]
        return total["kv_bytes_per_token"], total["state_bytes"]

    kv, state = figures()
    assert figures("--kv-dtype", "fp8_e4m3", "--tp", "2") == (kv / 4, state / 2)
    types = ("--ssm-dtype", "bfloat16", "--conv-dtype", "fp8_e5m2")
    assert figures(*types) == (kv, state / 2)


def test_a_models_own_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["granite-4.0-h-tiny"].config))
    status, out, _ = cost(capsys, "--model", str(tmp_path))
    assert status == 0
    assert "Mamba-2" in out


def test_a_model_without_kv(tmp_path, capsys):
    config = {**PRESETS["granite-4.0-h-tiny"].config, "layer_types": ["mamba"] * 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, _ = cost(capsys, "--model", str(tmp_path))
    assert status == 0
    assert "in tokens of KV" in out


def test_list_names_every_preset(capsys):
    status, out, _ = cost(capsys, "--list")
    assert status == 0
    assert [name for name in PRESETS if name not in out] == []
    assert "SGLang 0.5.23 has no implementation" in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--model", "hymba-1.5"], "did you mean hymba-1.5b?"),
        (["--model", "paper-7b", "--kv-dtype", "fp8"], "kv_dtype='fp8' is not a known type"),
        (["--model", "paper-7b", "--length", "0"], "--length 0 must be at least 1"),
        (["--model", "paper-7b", "--block", "-1"], "--block -1 must be at least 1"),
        (["--model", "falcon-h1-7b", "--tp", "5"], "cannot be divided over 5"),
        (["--model", "paper-7b", "--json", "/nowhere/cost.json"], "/nowhere/cost.json"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, problem, capsys):
    status, out, err = cost(capsys, *arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert err.startswith("hybrid-marconi cost: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--model", "paper-7b", "--length", "many"]])
def test_arguments_that_cannot_be_parsed(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["cost", *arguments])
    assert raised.value.code == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", float("nan")),
        ("hidden_size", "4096"),
        ("hidden_size", None),
        ("hidden_size", [4096]),
        ("hidden_size", 10**30),
        ("num_attention_heads", 0),
        ("head_dim", -128),
        ("mamba_d_state", 1.5),
    ],
)
def test_sizes_that_no_model_has_are_refused_by_name(field, value, tmp_path, capsys):
    config = {**PRESETS["granite-4.0-h-tiny"].config, field: value}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    status, out, err = cost(capsys, "--model", str(file))
    assert (status, out) == (2, "")
    assert f"{field} = {json.loads(json.dumps(value))!r} is not allowed; allowed: an integer" in err
    assert err.count("\n") == 1


def test_a_json_file_that_cannot_be_written(tmp_path, capsys):
    status, _, err = cost(
        capsys, "--model", "paper-7b", "--json", str(tmp_path / "none" / "out.json")
    )
    assert status == 2
    assert "out.json: No such file or directory; check" in err

"""Model configurations that no model has: one line that names the field, in bounded work."""

import json
import sys

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.cli import main
from sglang_hybrid.core.presets import PRESETS, load_model

SERVED = [name for name in PRESETS if not name.startswith("paper")]
JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 0.5, 2**31, 2**63, 10**400, float("nan"), float("inf"), "", "auto"),
        *("x" * 10**5, "\ud800\0", [], {}, [[]], [None], [-1], ["attention"] * 20_000, {"a": 1}),
        *(2**31 - 1, 1e308, "9", ["mamba", 5], [[0] * 20_000]),
    ]
)


def cost(path, capsys):
    status = main.main(["cost", "--model", str(path)])
    captured = capsys.readouterr()
    if status:
        assert (status, captured.out) == (2, "")
        assert captured.err.count("\n") == 1 and len(captured.err) < 1000
        assert captured.err.startswith("hybrid-marconi cost: ")
    return status, captured.err


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("model") / "config.json"


@examples(15)
@given(data=st.data())
@pytest.mark.parametrize("name", [*SERVED, "paper-7b"])
def test_any_value_of_any_field(name, data, file):
    config = {**PRESETS[name].config}
    field = data.draw(st.sampled_from(sorted(config)))
    if data.draw(st.booleans()):
        del config[field]
    else:
        config[field] = data.draw(JUNK)
    file.write_text(json.dumps(config))
    try:
        model = load_model(str(file))
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 900
        return
    assert 0 < model.costs.state_bytes < float("inf")
    assert 0 < model.costs.flops_linear < float("inf")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layer_types": ["mamba"] * 10**6}, "layer_types = ['mamba', 'mamba'"),
        ({"layer_types": "mamba" * 10**5}, "layer_types = 'mambamamba"),
        ({"layer_types": [["mamba"]]}, "a layer of type ['mamba'] is not allowed"),
        ({"mamba_expand": "x", "mamba_d_head": "auto", "hidden_size": 2**31 - 1}, "mamba_expand"),
        ({"num_experts_per_tok": -3}, "num_experts_per_tok = -3 is not allowed"),
        ({"num_experts_per_tok": [1] * 10}, "granite"),
        ({"mamba_d_conv": 1e400}, "mamba_d_conv = inf is not allowed"),
        ({"mamba_n_groups": 0}, "mamba_n_groups = 0 is not allowed"),
        ({"model_type": "x" * 10**6}, "model_type = 'xxx"),
        ({"model_type": "x" * 100}, "not a known type of hybrid model"),
        ({"hidden_size": "9" * 10**6}, "hidden_size = '999"),
    ],
)
def test_refused_by_name(changes, problem, tmp_path, capsys):
    file = tmp_path / "granite.json"
    file.write_text(json.dumps({**PRESETS["granite-4.0-h-tiny"].config, **changes}))
    status, err = cost(file, capsys)
    assert status == 2 and problem in err


@pytest.mark.parametrize("name", ["jamba-1.5-mini", "qwen3-next-80b-a3b", "lfm2-1.2b", "bamba-9b"])
def test_billions_of_layers(name, tmp_path, capsys):
    if name not in PRESETS:
        pytest.skip("no such preset")
    config = {**PRESETS[name].config, "num_hidden_layers": 2**31 - 1}
    config.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, err = cost(tmp_path, capsys)
    assert status == 2 and "num_hidden_layers = 2147483647 is not allowed" in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b'{"model_type": 5}',
        b'{"hidden_size": ' + b"9" * 5000 + b"}",
        b'{"model_type": "granitemoehybrid", "text_config": []}',
        b" " * (2**24 + 1),
        b"\0" * 100,
    ],
    ids=lambda content: ascii(content[:20]),
)
def test_files_that_are_no_configuration(content, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(content)
    assert cost(tmp_path, capsys)[0] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="has /dev/zero")
def test_a_file_without_an_end(capsys):
    status, err = cost("/dev/zero", capsys)
    assert status == 2 and "more than" in err


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "\ud800", "no\nsuch"], ids=ascii)
def test_paths_that_cannot_be(path, capsys):
    assert cost(path, capsys)[0] == 2


@pytest.mark.parametrize("flag", ["--length", "--block", "--tp"])
@pytest.mark.parametrize("value", ["1" + "0" * 400, str(2**63), "0", "-1"])
def test_numbers_that_are_too_large(flag, value, capsys):
    assert main.main(["cost", "--model", "paper-7b", flag, value]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and flag.strip("-") in err and len(err) < 1000

"""Configurations: known and unknown ones, types and shards, files."""

import json
from types import SimpleNamespace

import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.model_layers import Dtypes, layers_of, read_config
from sglang_hybrid.core.presets import PRESETS


def preset(name):
    return SimpleNamespace(**PRESETS[name].config)


def test_dtypes_and_shards_reach_every_layer():
    for name in ("granite-4.0-h-tiny", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b"):
        config = preset(name)
        whole = ModelCosts.of(layers_of(config, Dtypes()))
        half = ModelCosts.of(layers_of(config, Dtypes(), shards=2))
        assert half.state_bytes < whole.state_bytes
        assert half.flops_linear < whole.flops_linear
        small = ModelCosts.of(layers_of(config, Dtypes(kv=1, ssm=2, conv=1)))
        assert small.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
        assert small.state_bytes * 2 == whole.state_bytes


def test_unknown_models_are_said_to_be_unknown():
    assert layers_of(SimpleNamespace(model_type="llama"), Dtypes()) is None


def test_a_missing_field_is_named():
    config = preset("granite-4.0-h-tiny")
    del config.mamba_d_state
    with pytest.raises(AttributeError, match="mamba_d_state"):
        layers_of(config, Dtypes())


def test_a_file_is_read_with_or_without_a_vision_model_around_it(tmp_path):
    fields = PRESETS["qwen3-next-80b-a3b"].config
    plain, nested = tmp_path / "plain.json", tmp_path / "config.json"
    plain.write_text(json.dumps(fields))
    nested.write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": fields}))
    expected = layers_of(preset("qwen3-next-80b-a3b"), Dtypes())
    assert layers_of(read_config(plain), Dtypes()) == expected
    assert layers_of(read_config(tmp_path), Dtypes()) == expected


@pytest.mark.parametrize(
    "text, problem", [("{", "not JSON"), ("[]", "no model_type"), ("{}", "no model_type")]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, problem):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_config(file)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*config\.json: No such file"):
        read_config(tmp_path)

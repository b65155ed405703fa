"""Costs are read off the real pools."""

import importlib
import logging
from types import SimpleNamespace

import pytest
from harness import KV_LAYERS, STATE_LAYERS, make_pools, publish_server_args

from sglang_hybrid.adapter.model_costs import model_costs
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.model_layers import Dtypes, layers_of
from sglang_hybrid.core.presets import PRESETS, grouped, load_model


def test_bytes_are_those_of_the_pools_and_unknown_models_are_estimated(caplog):
    publish_server_args(1)
    req_pool, allocator = make_pools(8, 128, 4, False, 1)
    with caplog.at_level(logging.WARNING):
        costs = model_costs(
            SimpleNamespace(model_type="novel"),
            allocator.get_kvcache(),
            req_pool.mamba_pool,
            parameters=1000,
            shards=2,
        )
    # One head of two bfloat16 values, K and V.
    assert costs.kv_bytes_per_token == len(KV_LAYERS) * 2 * 2 * 2
    # 2 heads x 8 x 4 float32 values, and 3 columns of 16 + 2 * 4 bfloat16 channels.
    assert costs.state_bytes == len(STATE_LAYERS) * (2 * 8 * 4 * 4 + 3 * (16 + 2 * 4) * 2)
    # The weights are those of this rank already.
    assert costs.flops_linear == 2000
    assert "novel" in caplog.text


@pytest.mark.parametrize("shards", [1, 2])
def test_flops_of_a_known_model_come_from_its_configuration(shards):
    publish_server_args(1)
    req_pool, allocator = make_pools(8, 128, 4, False, 1)
    config = SimpleNamespace(**PRESETS["qwen3-next-80b-a3b"].config)
    costs = model_costs(config, allocator.get_kvcache(), req_pool.mamba_pool, 1000, shards)
    expected = ModelCosts.of(layers_of(config, Dtypes(), shards=shards))
    assert costs.prefill_flops(1000) == expected.prefill_flops(1000)
    assert costs.kv_bytes_per_token == len(KV_LAYERS) * 2 * 2 * 2


def test_a_configuration_that_is_not_understood_does_not_stop_the_server(caplog):
    publish_server_args(1)
    req_pool, allocator = make_pools(8, 128, 4, False, 1)
    config = SimpleNamespace(model_type="falcon_h1", hidden_size=64)
    with caplog.at_level(logging.WARNING):
        costs = model_costs(config, allocator.get_kvcache(), req_pool.mamba_pool, 1000, 1)
    assert costs.flops_linear == 2000
    assert "num_attention_heads" in caplog.text


CONFIGURATIONS = {
    "nemotron-h-8b": ("nemotron_h", "NemotronHConfig"),
    "falcon-h1-7b": ("falcon_h1", "FalconH1Config"),
    "granite-4.0-h-small": ("granitemoehybrid", "GraniteMoeHybridConfig"),
    "qwen3-next-80b-a3b": ("qwen3_next", "Qwen3NextConfig"),
    "kimi-linear-48b-a3b": ("kimi_linear", "KimiLinearConfig"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_of_sglang_give_the_same_as_the_preset(name):
    module, class_name = CONFIGURATIONS[name]
    module = importlib.import_module(f"sglang.srt.configs.{module}")
    fields = {key: value for key, value in PRESETS[name].config.items() if key != "model_type"}
    config = getattr(module, class_name)(**fields)
    assert grouped(layers_of(config, Dtypes())) == load_model(name).layers


def test_dense_qwen3_5_of_sglang_has_no_experts():
    module = importlib.import_module("sglang.srt.configs.qwen3_5")
    layers = layers_of(module.Qwen3_5TextConfig(), Dtypes())
    assert {layer.kind for layer in layers} == {"gated delta-net", "attention", "MLP"}

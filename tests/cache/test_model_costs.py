"""Costs are read off the real pools."""

import importlib
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from harness import KV_LAYERS, STATE_LAYERS, make_pools, publish_server_args
from rank_costs import put_costs_of_rank
from sglang.srt.configs.mamba_utils import KimiLinearStateShape, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

from sglang_hybrid.adapter.model_costs import kv_bytes_per_token, model_costs
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


def test_a_token_of_latent_attention_is_its_latent():
    publish_server_args(1)
    pool = MLATokenToKVPool(
        128,
        page_size=1,
        dtype=torch.bfloat16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        layer_num=3,
        device="cpu",
        enable_memory_saver=False,
    )
    assert kv_bytes_per_token(pool) == 3 * (16 + 8) * 2


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


def _mamba2_shape(shards, config):
    return Mamba2StateShape.create(
        tp_world_size=shards,
        intermediate_size=config["mamba_num_heads"] * config["mamba_head_dim"],
        n_groups=config["n_groups"],
        num_heads=config["mamba_num_heads"],
        head_dim=config["mamba_head_dim"],
        state_size=config["ssm_state_size"],
        conv_kernel=config["conv_kernel"],
    )


def _delta_net_shape(shards, config):
    return Mamba2StateShape.create(
        tp_world_size=shards,
        intermediate_size=config["linear_num_value_heads"] * config["linear_value_head_dim"],
        n_groups=config["linear_num_key_heads"],
        num_heads=config["linear_num_value_heads"],
        head_dim=config["linear_value_head_dim"],
        state_size=config["linear_key_head_dim"],
        conv_kernel=config["linear_conv_kernel_dim"],
    )


def _kimi_shape(shards, config):
    linear = config["linear_attn_config"]
    return KimiLinearStateShape.create(
        tp_world_size=shards,
        num_heads=linear["num_heads"],
        head_dim=linear["head_dim"],
        conv_kernel_size=linear["short_conv_kernel_size"],
    )


@pytest.mark.parametrize("shards", [1, 2, 8, 16])
@pytest.mark.parametrize(
    "name, layers, shape_of",
    [
        ("nemotron-h-8b", 24, _mamba2_shape),
        ("qwen3-next-80b-a3b", 36, _delta_net_shape),
        ("kimi-linear-48b-a3b", 20, _kimi_shape),
    ],
)
def test_a_shards_checkpoint_is_that_of_sglangs_pool(name, layers, shape_of, shards):
    config = PRESETS[name].config
    shape = shape_of(shards, config)
    convolutions = sum(math.prod(part) for part in shape.conv)
    layer_bytes = math.prod(shape.temporal) * 4 + convolutions * 2
    read = layers_of(SimpleNamespace(**config), Dtypes(), shards=shards)
    assert sum(layer.state_bytes for layer in read) == layers * layer_bytes


def test_ranks_weigh_by_the_same_costs(tmp_path):
    spawn = torch.multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    arguments = (str(tmp_path / "store"), results)
    torch.multiprocessing.spawn(put_costs_of_rank, arguments, nprocs=2)
    assert [results.get(), results.get()] == [ModelCosts(8.0, 101.0, 3e12, 5e6)] * 2

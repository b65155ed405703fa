"""Layers read from configurations of families with Mamba layers."""

from types import SimpleNamespace

import pytest

from sglang_hybrid.core.attention_costs import attention
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.feed_forward_costs import mlp, moe
from sglang_hybrid.core.model_layers import Dtypes, layers_of
from sglang_hybrid.core.state_costs import mamba1, mamba2

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1}
MAMBA |= {"mamba_d_state": 32, "mamba_d_conv": 4, "mamba_expand": 2}
ATTENTION = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def granite(**changes):
    fields = {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "intermediate_size": 48,
        "shared_intermediate_size": 96,
        **ATTENTION,
        **MAMBA,
    }
    return SimpleNamespace(**{**fields, **changes})


GQA = attention(64, 4, 2, 16, 2)
MAMBA2 = mamba2(64, 8, 16, 1, 32, 4, 4, 2)


def test_granite_has_a_mixer_and_a_gated_mlp_per_layer():
    expected = [MAMBA2, GQA, MAMBA2, *[mlp(64, 96, 3)] * 3]
    assert ModelCosts.of(layers_of(granite(), Dtypes())) == ModelCosts.of(expected)


def test_granite_counts_active_experts():
    few = layers_of(granite(num_local_experts=8, num_experts_per_tok=2), Dtypes())
    router, expert = 2 * 64 * 8, 2 * 3 * 64 * 48
    plain = ModelCosts.of(layers_of(granite(), Dtypes()))
    assert ModelCosts.of(few).flops_linear - plain.flops_linear == 3 * (router + 2 * expert)


def test_granite_head_size_may_be_left_to_the_model():
    assert layers_of(granite(mamba_d_head="auto"), Dtypes()) == layers_of(granite(), Dtypes())


def test_layer_types_have_two_names():
    renamed = granite(layer_types=["linear_attention", "full_attention", "linear_attention"])
    assert layers_of(renamed, Dtypes()) == layers_of(granite(), Dtypes())


def test_bamba_lists_its_attention_layers():
    config = SimpleNamespace(
        model_type="bamba",
        num_hidden_layers=3,
        attn_layer_indices=[1],
        intermediate_size=96,
        **ATTENTION,
        **MAMBA,
    )
    feed_forward = mlp(64, 96, 3)
    expected = [MAMBA2, feed_forward, GQA, feed_forward, MAMBA2, feed_forward]
    assert layers_of(config, Dtypes()) == expected


def test_falcon_h1_runs_attention_and_mamba_side_by_side():
    config = SimpleNamespace(
        model_type="falcon_h1", num_hidden_layers=3, intermediate_size=96, **ATTENTION, **MAMBA
    )
    assert layers_of(config, Dtypes()) == [GQA, MAMBA2, mlp(64, 96, 3)] * 3
    config.mamba_d_head, config.mamba_d_ssm = "auto", 64
    assert layers_of(config, Dtypes())[1] == mamba2(64, 8, 8, 1, 32, 4, 4, 2)


NEMOTRON = {
    "model_type": "nemotron_h",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 32,
    "intermediate_size": 96,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 48,
    **ATTENTION,
}


@pytest.mark.parametrize(
    "names",
    [
        # SGLang, transformers 5, and the models' own files.
        {
            "layers_block_type": ["mamba", "mlp", "attention", "moe"],
            "mamba_n_groups": 1,
            "conv_kernel": 4,
            "head_dim": 16,
        },
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
            "n_groups": 1,
            "conv_kernel": 4,
            "head_dim": 16,
        },
        {
            "hybrid_override_pattern": "M-*E",
            "n_groups": 1,
            "conv_kernel": 4,
            "attention_head_dim": 16,
        },
    ],
)
def test_nemotron_h_layers_are_one_thing_each(names):
    expected = [MAMBA2, mlp(64, 96, 2), GQA, moe(64, 4, 2, 32, 48, 2)]
    assert layers_of(SimpleNamespace(**NEMOTRON, **names), Dtypes()) == expected


def test_jamba_has_two_periods():
    config = SimpleNamespace(
        model_type="jamba",
        num_hidden_layers=4,
        attn_layer_period=4,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        intermediate_size=96,
        mamba_d_state=8,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank="auto",
        **ATTENTION,
    )
    mamba = mamba1(64, 128, 8, 4, 4, 4, 2)
    dense, experts = mlp(64, 96, 3), moe(64, 4, 2, 96, 0, 3)
    expected = [mamba, dense, mamba, experts, GQA, dense, mamba, experts]
    assert layers_of(config, Dtypes()) == expected
    config.num_experts = 1
    assert layers_of(config, Dtypes())[1::2] == [dense] * 4


def test_zamba2_runs_a_shared_block_before_some_of_its_mamba_layers():
    config = SimpleNamespace(
        model_type="zamba2",
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=96,
        layers_block_type=["mamba", "hybrid"],
        adapter_rank=4,
        n_mamba_heads=8,
        mamba_ngroups=1,
        mamba_d_state=32,
        mamba_d_conv=4,
        mamba_expand=2,
    )
    first, *block, last = layers_of(config, Dtypes())
    assert first == last == MAMBA2
    model = ModelCosts.of(layers_of(config, Dtypes()))
    assert model.kv_bytes_per_token == 2 * 4 * 32 * 2  # heads twice as wide
    weights = 3 * 128 * 128 + 128 * 64 + 3 * 64 * 96 + 4 * (64 + 2 * 96) + 64 * 64
    assert sum(layer.flops_linear for layer in block) == 2 * weights
    config.use_shared_attention_adapter = True
    with_adapters = ModelCosts.of(layers_of(config, Dtypes()))
    assert with_adapters.flops_linear - model.flops_linear == 2 * 3 * 2 * 128 * 4


def test_hymba_shares_kv_between_layers():
    config = SimpleNamespace(
        model_type="hymba",
        num_hidden_layers=3,
        intermediate_size=96,
        v_head_dim=32,
        sliding_window=8,
        global_attn_idx=[0],
        kv_reuse_group=[[1, 2]],
        mamba_d_state=8,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=4,
        **ATTENTION,
    )
    mixers = [layer for layer in layers_of(config, Dtypes()) if "attention" in layer.kind]
    assert [layer.kv_bytes_per_token for layer in mixers] == [2 * (16 + 32) * 2] * 2 + [0]
    assert [layer.flops_quadratic for layer in mixers] == [2 * 4 * (16 + 32), 0, 0]
    kv_projections = mixers[1].flops_linear - mixers[2].flops_linear
    assert kv_projections == 2 * 64 * 2 * (16 + 32)
    with pytest.raises(ValueError, match="Hymba"):
        layers_of(config, Dtypes(), shards=2)

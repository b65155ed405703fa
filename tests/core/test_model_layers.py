"""Layer costs read from model configurations."""

from types import SimpleNamespace

import pytest

from sglang_hybrid.core import costs
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.model_layers import Dtypes, layers_of

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


def test_granite_has_a_mixer_and_a_gated_mlp_per_layer():
    mamba = costs.mamba2(64, 8, 16, 1, 32, 4, 4, 2)
    attention = costs.attention(64, 4, 2, 16, 2)
    expected = [mamba, attention, mamba, *[costs.mlp(64, 96, 3)] * 3]
    assert ModelCosts.of(layers_of(granite(), Dtypes())) == ModelCosts.of(expected)


def test_granite_counts_active_experts():
    few = layers_of(granite(num_local_experts=8, num_experts_per_tok=2), Dtypes())
    router, expert = 2 * 64 * 8, 2 * 3 * 64 * 48
    plain = ModelCosts.of(layers_of(granite(), Dtypes()))
    assert ModelCosts.of(few).flops_linear - plain.flops_linear == 3 * (router + 2 * expert)


def test_granite_head_size_may_be_left_to_the_model():
    assert layers_of(granite(mamba_d_head="auto"), Dtypes()) == layers_of(granite(), Dtypes())


def test_falcon_h1_runs_attention_and_mamba_side_by_side():
    config = SimpleNamespace(
        model_type="falcon_h1", num_hidden_layers=3, intermediate_size=96, **ATTENTION, **MAMBA
    )
    model = ModelCosts.of(layers_of(config, Dtypes()))
    assert model.kv_bytes_per_token == 3 * 2 * 2 * 16 * 2
    assert model.state_bytes == 3 * costs.mamba2(64, 8, 16, 1, 32, 4, 4, 2).state_bytes


def test_nemotron_h_layers_are_one_thing_each():
    config = SimpleNamespace(
        model_type="nemotron_h",
        layers_block_type=["mamba", "mlp", "attention", "moe"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        mamba_n_groups=1,
        ssm_state_size=32,
        conv_kernel=4,
        head_dim=16,
        intermediate_size=96,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_shared_experts=1,
        moe_shared_expert_intermediate_size=48,
        **ATTENTION,
    )
    expected = [
        costs.mamba2(64, 8, 16, 1, 32, 4, 4, 2),
        costs.mlp(64, 96, 2),
        costs.attention(64, 4, 2, 16, 2),
        costs.moe(64, 4, 2, 32, 48, 2),
    ]
    assert layers_of(config, Dtypes()) == expected


def test_unknown_models_are_said_to_be_unknown():
    assert layers_of(SimpleNamespace(model_type="llama"), Dtypes()) is None


def test_a_missing_field_is_named():
    config = granite()
    del config.mamba_d_state
    with pytest.raises(AttributeError, match="mamba_d_state"):
        layers_of(config, Dtypes())

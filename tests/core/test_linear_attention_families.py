"""Layers read from configurations of families with delta-rule or convolution layers."""

from types import SimpleNamespace

import pytest

from sglang_hybrid.core.attention_costs import attention, latent_attention
from sglang_hybrid.core.feed_forward_costs import mlp, moe
from sglang_hybrid.core.model_layers import Dtypes, layers_of
from sglang_hybrid.core.state_costs import (
    gated_delta_net,
    kimi_delta_attention,
    short_convolution,
)

ATTENTION = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
GQA = attention(64, 4, 2, 16, 2)


def qwen(**changes):
    fields = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "intermediate_size": 96,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [0],
        **ATTENTION,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_qwen3_next_attends_once_per_interval():
    delta_net = gated_delta_net(64, 2, 4, 8, 16, 4, 4, 2)
    gated = attention(64, 4, 2, 16, 2, gate_dim=16)
    dense, experts = mlp(64, 96, 3), moe(64, 5, 2, 32, 40, 3)
    expected = [delta_net, dense, delta_net, experts, delta_net, experts, gated, experts]
    assert layers_of(qwen(), Dtypes()) == expected
    interval = qwen(full_attention_interval=2)
    assert layers_of(interval, Dtypes())[2] == gated
    listed = qwen(layer_types=["full_attention", *["linear_attention"] * 3])
    assert layers_of(listed, Dtypes())[0] == gated


def test_dense_qwen3_5_has_no_experts_whatever_its_configuration_lists():
    kinds = [layer.kind for layer in layers_of(qwen(model_type="qwen3_5_text"), Dtypes())]
    assert kinds.count("MLP") == 4
    assert "MoE" not in kinds


def kimi(**changes):
    fields = {
        "model_type": "kimi_linear",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "kv_lora_rank": 24,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "linear_attn_config": {
            "kda_layers": [1, 3],
            "full_attn_layers": [2],
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_kimi_linear_counts_its_layers_from_one():
    delta, latent = (
        kimi_delta_attention(64, 4, 8, 4, 4, 2),
        latent_attention(64, 4, 24, 16, 8, 12, 2),
    )
    experts = moe(64, 8, 2, 32, 32, 3)
    expected = [delta, mlp(64, 96, 3), latent, experts, delta, experts]
    assert layers_of(kimi(), Dtypes()) == expected


def test_a_variant_of_kimi_linear_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="routed_expert_hidden_size"):
        layers_of(kimi(routed_expert_hidden_size=32), Dtypes())


def lfm2(**changes):
    fields = {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "conv_L_cache": 3,
        "block_multiple_of": 16,
        "layer_types": ["conv", "full_attention"],
        **ATTENTION,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_lfm2_may_derive_the_width_of_its_mlp():
    convolution = short_convolution(64, 3, 2)
    adjusted = [convolution, mlp(64, 64, 3), GQA, mlp(64, 64, 3)]
    assert layers_of(lfm2(), Dtypes()) == adjusted
    given = [convolution, mlp(64, 96, 3), GQA, mlp(64, 96, 3)]
    assert layers_of(lfm2(block_auto_adjust_ff_dim=False), Dtypes()) == given
    wider = layers_of(lfm2(block_ffn_dim_multiplier=1.1), Dtypes())
    assert wider[1] == mlp(64, 80, 3)


def test_lfm2_may_list_its_attention_layers():
    assert layers_of(lfm2(layer_types=None, full_attn_idxs=[1]), Dtypes()) == layers_of(
        lfm2(), Dtypes()
    )


def test_lfm2_moe_starts_with_dense_layers():
    config = lfm2(
        model_type="lfm2_moe",
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    feed_forward = layers_of(config, Dtypes())[1::2]
    assert feed_forward == [mlp(64, 96, 3), moe(64, 4, 2, 32, 0, 3)]

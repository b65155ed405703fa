"""Layer costs of families with delta-rule or short-convolution layers, from configurations.

Facts about the configurations are those of the models' ``config.json`` and of the
configuration classes of transformers 5 and SGLang 0.5.23.
"""

from __future__ import annotations

from typing import Any

from sglang_hybrid.core import attention_costs, feed_forward_costs, state_costs
from sglang_hybrid.core.config_fields import (
    ATTENTION,
    STATE,
    Dtypes,
    gated_mlp,
    gqa,
    layer_types,
    optional,
)
from sglang_hybrid.core.costs import LayerCosts


def qwen3_next(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Gated delta-nets and, once per interval, attention with an output gate; then experts,
    or an MLP in the layers that the configuration makes dense. Qwen3.5 MoE is the same."""
    layers = []
    for index, mixer in enumerate(_qwen_mixers(config, dtypes, shards)):
        layers += [mixer, _qwen_feed_forward(config, index, shards)]
    return layers


def qwen3_5_dense(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """As Qwen3-Next, with an MLP everywhere. SGLang's configuration lists experts all the
    same."""
    feed_forward = gated_mlp(config, shards)
    return [
        layer for mixer in _qwen_mixers(config, dtypes, shards) for layer in (mixer, feed_forward)
    ]


def _qwen_mixers(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    attention = gqa(config, dtypes, shards, gate_dim=config.head_dim)
    delta_net = state_costs.gated_delta_net(
        config.hidden_size,
        config.linear_num_key_heads,
        config.linear_num_value_heads,
        config.linear_key_head_dim,
        config.linear_value_head_dim,
        config.linear_conv_kernel_dim,
        dtypes.ssm,
        dtypes.conv,
        shards=shards,
    )
    mixers = {ATTENTION: attention, STATE: delta_net}
    return [mixers[kind] for kind in _qwen_layer_types(config)]


def _qwen_layer_types(config: Any) -> list[str]:
    if optional(config, "layer_types") is not None:
        return layer_types(config)
    interval = optional(config, "full_attention_interval", 4)
    return [STATE if (i + 1) % interval else ATTENTION for i in range(config.num_hidden_layers)]


def _qwen_feed_forward(config: Any, index: int, shards: int) -> LayerCosts:
    step = optional(config, "decoder_sparse_step", 1)
    if index in optional(config, "mlp_only_layers", ()) or (index + 1) % step:
        return gated_mlp(config, shards)
    return feed_forward_costs.moe(
        config.hidden_size,
        config.num_experts + 1,  # the gate of the shared expert is one more output
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
        matrices=3,
        shards=shards,
    )


def kimi_linear(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Kimi delta attention and, every few layers, latent attention; then experts.

    The model's own file and SGLang keep the sizes of the delta-rule layers in a mapping,
    transformers in fields of their own.
    """
    if optional(config, "routed_expert_hidden_size"):
        raise ValueError("experts on a projected width (routed_expert_hidden_size) are not known")
    linear = optional(config, "linear_attn_config")
    heads = linear["num_heads"] if linear else config.linear_num_heads
    head_dim = linear["head_dim"] if linear else config.linear_head_dim
    kernel = linear["short_conv_kernel_size"] if linear else config.linear_conv_kernel_dim
    delta_attention = state_costs.kimi_delta_attention(
        config.hidden_size, heads, head_dim, kernel, dtypes.ssm, dtypes.conv, shards=shards
    )
    latent_attention = attention_costs.latent_attention(
        config.hidden_size,
        config.num_attention_heads,
        config.kv_lora_rank,
        config.qk_nope_head_dim,
        config.qk_rope_head_dim,
        config.v_head_dim,
        dtypes.kv,
        query_latent_dim=optional(config, "q_lora_rank"),
        shards=shards,
    )
    mixers = {STATE: delta_attention, ATTENTION: latent_attention}
    layers = []
    for index, kind in enumerate(_kimi_layer_types(config)):
        layers += [mixers[kind], _kimi_feed_forward(config, index, shards)]
    return layers


def _kimi_layer_types(config: Any) -> list[str]:
    linear = optional(config, "linear_attn_config")
    if not linear:
        return layer_types(config)
    # Counted from 1 in the file.
    return [
        STATE if i + 1 in linear["kda_layers"] else ATTENTION
        for i in range(config.num_hidden_layers)
    ]


def _kimi_feed_forward(config: Any, index: int, shards: int) -> LayerCosts:
    if (kinds := optional(config, "mlp_layer_types")) is not None:
        dense = kinds[index] == "dense"
    else:
        frequency = optional(config, "moe_layer_freq", 1)
        dense = index < config.first_k_dense_replace or index % frequency != 0
    experts = optional(config, "num_experts") or optional(config, "num_local_experts")
    if dense or not experts:
        return gated_mlp(config, shards)
    active = optional(config, "num_experts_per_token")
    shared = optional(config, "num_shared_experts")
    return feed_forward_costs.moe(
        config.hidden_size,
        experts,
        config.num_experts_per_tok if active is None else active,
        config.moe_intermediate_size,
        (config.n_shared_experts if shared is None else shared) * config.moe_intermediate_size,
        matrices=3,
        shards=shards,
    )


def lfm2(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Short convolutions and attention, then a gated MLP whose width may be derived."""
    feed_forward = feed_forward_costs.mlp(
        config.hidden_size, _lfm2_width(config), matrices=3, shards=shards
    )
    return [
        layer for mixer in _lfm2_mixers(config, dtypes, shards) for layer in (mixer, feed_forward)
    ]


def lfm2_moe(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """As LFM2, with experts instead of the MLP after the first dense layers."""
    experts = feed_forward_costs.moe(
        config.hidden_size,
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        shared_intermediate=0,
        matrices=3,
        shards=shards,
    )
    layers = []
    for index, mixer in enumerate(_lfm2_mixers(config, dtypes, shards)):
        dense = index < config.num_dense_layers
        layers += [mixer, gated_mlp(config, shards) if dense else experts]
    return layers


def _lfm2_mixers(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    convolution = state_costs.short_convolution(
        config.hidden_size, config.conv_L_cache, dtypes.conv, shards=shards
    )
    attention = gqa(config, dtypes, shards)
    if optional(config, "layer_types") is not None:
        with_attention = [kind == ATTENTION for kind in layer_types(config)]
    else:
        with_attention = [i in config.full_attn_idxs for i in range(config.num_hidden_layers)]
    return [attention if attends else convolution for attends in with_attention]


def _lfm2_width(config: Any) -> int:
    """Two thirds of the width that is given, rounded up to a multiple."""
    width: int = optional(config, "block_ff_dim") or config.intermediate_size
    if not optional(config, "block_auto_adjust_ff_dim", True):
        return width
    width = int(optional(config, "block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple: int = config.block_multiple_of
    return -(-width // multiple) * multiple

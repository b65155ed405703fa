"""Layer costs of families with Mamba layers, from their configurations.

Facts about the configurations are those of the models' ``config.json`` and of the
configuration classes of transformers 5 and SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_hybrid.core import attention_costs, feed_forward_costs, state_costs
from sglang_hybrid.core.config_fields import (
    ATTENTION,
    STATE,
    Dtypes,
    gated_mlp,
    gqa,
    layer_types,
    mamba2_d,
    optional,
)
from sglang_hybrid.core.costs import LayerCosts

_NEMOTRON_PATTERN = {"M": STATE, "*": ATTENTION, "-": "mlp", "E": "moe"}


def granite(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """One mixer per layer, then a mixture of experts beside a shared gated MLP."""
    mixers = {STATE: mamba2_d(config, dtypes, shards), ATTENTION: gqa(config, dtypes, shards)}
    hidden, shared = config.hidden_size, config.shared_intermediate_size
    if experts := optional(config, "num_local_experts", 0):
        feed_forward = feed_forward_costs.moe(
            hidden,
            experts,
            config.num_experts_per_tok,
            config.intermediate_size,
            shared,
            matrices=3,
            shards=shards,
        )
    else:
        feed_forward = feed_forward_costs.mlp(hidden, shared, matrices=3, shards=shards)
    return [layer for kind in layer_types(config) for layer in (mixers[kind], feed_forward)]


def bamba(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Attention in the layers that are listed, Mamba-2 in the others; then a gated MLP."""
    attention, mamba = gqa(config, dtypes, shards), mamba2_d(config, dtypes, shards)
    with_attention = set(optional(config, "attn_layer_indices", ()))
    mixers = [attention if i in with_attention else mamba for i in range(config.num_hidden_layers)]
    return [layer for mixer in mixers for layer in (mixer, gated_mlp(config, shards))]


def falcon_h1(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Attention and Mamba-2 side by side in every layer, then a gated MLP."""
    layer = [
        gqa(config, dtypes, shards),
        mamba2_d(config, dtypes, shards),
        gated_mlp(config, shards),
    ]
    return layer * int(config.num_hidden_layers)


def nemotron_h(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """A layer is one of Mamba-2, attention, two-matrix MLP, or two-matrix experts.

    SGLang and transformers name some fields differently from the models' own files, and
    the files spell the layers as a pattern of letters.
    """
    by_kind: dict[str, Callable[[], LayerCosts]] = {
        STATE: lambda: state_costs.mamba2(
            config.hidden_size,
            config.mamba_num_heads,
            config.mamba_head_dim,
            optional(config, "n_groups") or config.mamba_n_groups,
            config.ssm_state_size,
            optional(config, "conv_kernel") or config.mamba_d_conv,
            dtypes.ssm,
            dtypes.conv,
            shards=shards,
        ),
        ATTENTION: lambda: gqa(config, dtypes, shards),
        "mlp": lambda: feed_forward_costs.mlp(
            config.hidden_size, config.intermediate_size, matrices=2, shards=shards
        ),
        "moe": lambda: feed_forward_costs.moe(
            config.hidden_size,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            config.n_shared_experts * config.moe_shared_expert_intermediate_size,
            matrices=2,
            latent_dim=optional(config, "moe_latent_size"),
            shards=shards,
        ),
    }
    if optional(config, "layers_block_type") is None:
        kinds = [_NEMOTRON_PATTERN[letter] for letter in config.hybrid_override_pattern]
    else:
        kinds = layer_types(config)
    return [by_kind[kind]() for kind in kinds]


def jamba(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Attention once per period, Mamba-1 elsewhere; MLP or experts, by another period.

    With a single expert the layers of the other period are MLPs as well.
    """
    attention, mamba = gqa(config, dtypes, shards), _mamba1(config, dtypes, shards)
    experts = feed_forward_costs.moe(
        config.hidden_size,
        config.num_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        shared_intermediate=0,
        matrices=3,
        shards=shards,
    )
    layers = []
    for index in range(config.num_hidden_layers):
        with_attention = index % config.attn_layer_period == config.attn_layer_offset
        with_experts = (
            config.num_experts > 1
            and index % config.expert_layer_period == config.expert_layer_offset
        )
        layers.append(attention if with_attention else mamba)
        layers.append(experts if with_experts else gated_mlp(config, shards))
    return layers


def _mamba1(config: Any, dtypes: Dtypes, shards: int) -> LayerCosts:
    """Mamba-1 in the field names that Jamba and Hymba share."""
    rank = config.mamba_dt_rank
    return state_costs.mamba1(
        config.hidden_size,
        config.mamba_expand * config.hidden_size,
        config.mamba_d_state,
        -(-config.hidden_size // 16) if rank == "auto" else rank,
        config.mamba_d_conv,
        dtypes.ssm,
        dtypes.conv,
        shards=shards,
    )


def zamba2(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Mamba-2 in every layer; "hybrid" layers run a shared transformer block before it.

    The block reads the hidden state beside the embedding (``2 * hidden_size`` wide), each
    use of it has its own low-rank adapters, and a square matrix takes its output back.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    rank, heads = config.adapter_rank, config.num_attention_heads
    mamba = state_costs.mamba2(
        hidden,
        config.n_mamba_heads,
        config.mamba_expand * hidden // config.n_mamba_heads,
        config.mamba_ngroups,
        config.mamba_d_state,
        config.mamba_d_conv,
        dtypes.ssm,
        dtypes.conv,
        shards=shards,
    )
    adapters = rank * (hidden + 2 * inner)
    if optional(config, "use_shared_attention_adapter", False):
        adapters += 3 * rank * (2 * hidden + 2 * hidden)
    block = [
        attention_costs.attention(
            hidden,
            heads,
            optional(config, "num_key_value_heads", heads),
            2 * hidden // heads,
            dtypes.kv,
            input_dim=2 * hidden,
            shards=shards,
        ),
        gated_mlp(config, shards),
        feed_forward_costs.dense(adapters + hidden**2, shards=shards, kind="adapters"),
    ]
    layers = []
    for kind in layer_types(config):
        layers += [*block, mamba] if kind == "hybrid" else [mamba]
    return layers


def hymba(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Attention and Mamba-1 side by side in every layer, with one output projection.

    Few layers attend to all tokens, the others to a window. In a group of layers only the
    first has K and V; the others use them. Values are as wide per head as makes attention
    and Mamba outputs equal, so that the two are averaged before the projection that
    `state_costs.mamba1` counts. The learnt tokens before every prompt are not counted.
    """
    if shards != 1:
        raise ValueError("no tensor-parallel layout of Hymba is known; use 1 shard")
    hidden, heads = config.hidden_size, config.num_attention_heads
    key_dim, value_dim = hidden // heads, config.v_head_dim
    mamba, feed_forward = _mamba1(config, dtypes, shards), gated_mlp(config, shards)
    borrowing = {layer for group in config.kv_reuse_group for layer in group[1:]}
    layers = []
    for index in range(config.num_hidden_layers):
        borrows = index in borrowing
        window = None if index in config.global_attn_idx else config.sliding_window
        linear, quadratic = attention_costs.score_flops(heads, key_dim, value_dim, window)
        kv_dim = 0 if borrows else config.num_key_value_heads * (key_dim + value_dim)
        attention = LayerCosts(
            kv_bytes_per_token=kv_dim * dtypes.kv,
            flops_linear=2 * hidden * (heads * key_dim + kv_dim) + linear,
            flops_quadratic=quadratic,
            kind=("attention" if window is None else "sliding-window attention")
            + (", KV of another layer" if borrows else ""),
        )
        layers += [attention, mamba, feed_forward]
    return layers

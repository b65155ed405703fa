"""Layer costs from a Hugging Face model configuration.

Known are the Mamba-2 hybrids that SGLang serves: GraniteMoeHybrid, Falcon-H1
and Nemotron-H. `layers_of` returns None for others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_hybrid.core import costs
from sglang_hybrid.core.costs import LayerCosts


@dataclass(frozen=True)
class Dtypes:
    """Bytes per element of what is kept per token and per checkpoint."""

    kv: float = 2
    ssm: float = 4
    conv: float = 2


def layers_of(config: Any, dtypes: Dtypes) -> list[LayerCosts] | None:
    """Costs of every layer of ``config`` (attribute access), or None if it is not known.

    Raises:
        AttributeError: a known model type lacks one of its fields.
    """
    reader = _READERS.get(config.model_type)
    return None if reader is None else reader(config, dtypes)


def _attention(config: Any, dtypes: Dtypes) -> LayerCosts:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return costs.attention(
        config.hidden_size, heads, config.num_key_value_heads, head_dim, dtypes.kv
    )


def _mamba_d(config: Any, dtypes: Dtypes) -> LayerCosts:
    """Mamba-2 in the field names that Granite and Falcon-H1 share."""
    head_dim = config.mamba_d_head
    if head_dim == "auto":
        head_dim = config.mamba_expand * config.hidden_size // config.mamba_n_heads
    return costs.mamba2(
        config.hidden_size,
        config.mamba_n_heads,
        head_dim,
        config.mamba_n_groups,
        config.mamba_d_state,
        config.mamba_d_conv,
        dtypes.ssm,
        dtypes.conv,
    )


def _granite(config: Any, dtypes: Dtypes) -> list[LayerCosts]:
    """One mixer per layer, then a mixture of experts beside a shared gated MLP."""
    mixers = {"mamba": _mamba_d(config, dtypes), "attention": _attention(config, dtypes)}
    experts = getattr(config, "num_local_experts", 0) or 0
    feed_forward = costs.moe(
        config.hidden_size,
        experts,
        config.num_experts_per_tok if experts else 0,
        config.intermediate_size,
        config.shared_intermediate_size,
        matrices=3,
    )
    kinds = getattr(config, "layers_block_type", None) or config.layer_types
    return [layer for kind in kinds for layer in (mixers[kind], feed_forward)]


def _falcon_h1(config: Any, dtypes: Dtypes) -> list[LayerCosts]:
    """Attention and Mamba-2 side by side in every layer, then a gated MLP."""
    layer = [
        _attention(config, dtypes),
        _mamba_d(config, dtypes),
        costs.mlp(config.hidden_size, config.intermediate_size, matrices=3),
    ]
    return layer * int(config.num_hidden_layers)


def _nemotron_h(config: Any, dtypes: Dtypes) -> list[LayerCosts]:
    """A layer is one of Mamba-2, attention, two-matrix MLP, or two-matrix experts."""
    by_kind: dict[str, Callable[[], LayerCosts]] = {
        "mamba": lambda: costs.mamba2(
            config.hidden_size,
            config.mamba_num_heads,
            config.mamba_head_dim,
            config.mamba_n_groups,
            config.ssm_state_size,
            config.conv_kernel,
            dtypes.ssm,
            dtypes.conv,
        ),
        "attention": lambda: _attention(config, dtypes),
        "mlp": lambda: costs.mlp(config.hidden_size, config.intermediate_size, matrices=2),
        "moe": lambda: costs.moe(
            config.hidden_size,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            config.n_shared_experts * config.moe_shared_expert_intermediate_size,
            matrices=2,
        ),
    }
    return [by_kind[kind]() for kind in config.layers_block_type]


_READERS: dict[str, Callable[[Any, Dtypes], list[LayerCosts]]] = {
    "granitemoehybrid": _granite,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
}

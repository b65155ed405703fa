"""Fields that the configurations of several model families have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_hybrid.core.attention_costs import attention
from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.feed_forward_costs import mlp
from sglang_hybrid.core.state_costs import mamba2


@dataclass(frozen=True)
class Dtypes:
    """Bytes per element of what is kept per token and per checkpoint."""

    kv: float = 2
    ssm: float = 4
    conv: float = 2


Reader = Callable[[Any, Dtypes, int], list[LayerCosts]]
"""Costs of every layer from a configuration, the types kept, and the shards."""

STATE, ATTENTION = "linear_attention", "full_attention"

_LAYER_TYPES = {"mamba": STATE, "attention": ATTENTION}


_SHOWN_CHARS = 60


def shown(value: Any) -> str:
    """``value`` of a configuration as it stands in a message, short and on one line."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def layer_types(config: Any) -> list[str]:
    """Type of every layer in the names of transformers 5, whichever names are used."""
    types: Sequence[str] | None = getattr(config, "layer_types", None)
    if types is None:
        types = config.layers_block_type
    wrong = next((kind for kind in types if not isinstance(kind, str)), None)
    if wrong is not None:
        raise ValueError(f"a layer of type {shown(wrong)} is not allowed; allowed: a name")
    return [_LAYER_TYPES.get(kind, kind) for kind in types]


def optional(config: Any, name: str, default: Any = None) -> Any:
    """A field that may be missing or null."""
    value = getattr(config, name, None)
    return default if value is None else value


def gqa(config: Any, dtypes: Dtypes, shards: int, **details: int) -> LayerCosts:
    """Attention in the field names that almost all families use."""
    heads = config.num_attention_heads
    head_dim = optional(config, "head_dim") or optional(config, "attention_head_dim")
    return attention(
        config.hidden_size,
        heads,
        optional(config, "num_key_value_heads", heads),
        head_dim or config.hidden_size // heads,
        dtypes.kv,
        shards=shards,
        **details,
    )


def gated_mlp(config: Any, shards: int) -> LayerCosts:
    """Gated feed-forward layer in the field names that almost all families use."""
    return mlp(config.hidden_size, config.intermediate_size, matrices=3, shards=shards)


def mamba2_d(config: Any, dtypes: Dtypes, shards: int) -> LayerCosts:
    """Mamba-2 in the field names that Granite, Bamba and Falcon-H1 share."""
    head_dim = config.mamba_d_head
    if head_dim == "auto":
        inner = optional(config, "mamba_d_ssm") or config.mamba_expand * config.hidden_size
        head_dim = inner // config.mamba_n_heads
    return mamba2(
        config.hidden_size,
        config.mamba_n_heads,
        head_dim,
        config.mamba_n_groups,
        config.mamba_d_state,
        config.mamba_d_conv,
        dtypes.ssm,
        dtypes.conv,
        shards=shards,
    )

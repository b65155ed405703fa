"""Fields that the configurations of several model families have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

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


_NEEDED = ("hidden_size", "_heads")
_SIZES = (*_NEEDED, "_size", "_dim", "_layers", "_rank", "_kernel", "_groups", "_experts", "_state")


MAX_LAYERS = 10_000
"""Layers of a model, and the longest list of a configuration that is read."""

_LARGEST = 2**31 - 1
_TEXTS = ("model_type", "hybrid_override_pattern")
_DIVISORS = (*_NEEDED, "_period", "_interval", "_step", "_freq", "groups", "_multiple_of")
_FRACTIONS = ("_expand", "_multiplier", "bytes_per_state_dim")
_SHOWN_CHARS = 60


class CheckedConfig:
    """A configuration that gives out a field only if a model can have its value.

    What a family's reader does not ask for may be anything.

    Args:
        config: fields are attributes.
        name: of the model, for messages.

    Raises:
        ValueError: from every field that is asked for: names the model, the field, its
            value and what is allowed.
    """

    def __init__(self, config: Any, name: str) -> None:
        self._config, self._name = config, name

    def __getattr__(self, field: str) -> Any:
        value = getattr(self._config, field)
        self._check(field, value)
        setattr(self, field, value)  # checked once
        return value

    def _check(self, field: str, value: Any, depth: int = 0) -> None:
        if isinstance(value, list | dict):
            if len(value) > MAX_LAYERS:
                self._refuse(field, value, f"up to {MAX_LAYERS} entries, not {len(value)}")
            # A mapping of sizes, a list by layer, or a list of groups of layers.
            if depth > 1:
                self._refuse(field, value, "no deeper nesting")
            parts = value.items() if isinstance(value, dict) else ((field, v) for v in value)
            for part, inner in parts:
                self._check(str(part), inner, depth + 1)
        elif isinstance(value, str):
            if len(value) > MAX_LAYERS:
                self._refuse(field, value, f"up to {MAX_LAYERS} characters")
            # Elements of a list name kinds of layers.
            if not depth and field not in _TEXTS and value != "auto":
                self._refuse(field, value, "a number")
        elif isinstance(value, float) and field.endswith(_FRACTIONS):
            if not 0 <= value <= _LARGEST:
                self._refuse(field, value, f"a number from 0 to {_LARGEST}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            most = MAX_LAYERS if field.endswith("_layers") else _LARGEST
            least = 1 if field.endswith(_DIVISORS) else 0
            if not (least <= value <= most and value == int(value)):
                self._refuse(field, value, f"an integer from {least} to {most}")

    def _refuse(self, field: str, value: Any, allowed: str) -> NoReturn:
        raise ValueError(
            f"{self._name}: {field} = {shown(value)} is not allowed; allowed: {allowed}; "
            "correct it in the configuration"
        )


def shown(value: Any) -> str:
    """``value`` of a configuration as it stands in a message, short and on one line."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def check_sizes(config: Any, name: str) -> None:
    """Refuse sizes that no model can have, before anything is computed from them.

    Raises:
        ValueError: names the model, the field, its value and what is allowed.
    """
    for field, value in vars(config).items():
        if not field.endswith(_SIZES):
            continue
        least = 1 if field.endswith(_NEEDED) else 0
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = is_number and least <= value < 2**31 and value == int(value)
        # A list has a value per layer; "auto" and null are left to the family's reader.
        is_open = value is None or value == "auto" or isinstance(value, dict | list)
        if not fits and (field == "hidden_size" or not is_open):
            raise ValueError(
                f"{name}: {shown(field)[1:-1]} = {shown(value)} is not allowed; allowed: an "
                f"integer from {least} to "
                f"{2**31 - 1}; correct it in the configuration"
            )


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

"""Layer costs of the families of hybrid models that are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_hybrid.core import linear_attention_families as linear
from sglang_hybrid.core import mamba_families as mamba
from sglang_hybrid.core.config_fields import Dtypes, Reader
from sglang_hybrid.core.costs import LayerCosts

FAMILIES: Mapping[str, Reader] = {
    "bamba": mamba.bamba,
    "falcon_h1": mamba.falcon_h1,
    "granitemoehybrid": mamba.granite,
    "hymba": mamba.hymba,
    "jamba": mamba.jamba,
    "kimi_linear": linear.kimi_linear,
    "lfm2": linear.lfm2,
    "lfm2_moe": linear.lfm2_moe,
    "nemotron_h": mamba.nemotron_h,
    "qwen3_5": linear.qwen3_5_dense,
    "qwen3_5_moe": linear.qwen3_next,
    "qwen3_5_moe_text": linear.qwen3_next,
    "qwen3_5_text": linear.qwen3_5_dense,
    "qwen3_next": linear.qwen3_next,
    "zamba2": mamba.zamba2,
}
"""Model types of configurations, and who reads them."""


def layers_of(
    config: Any, dtypes: Dtypes, *, shards: int = 1, families: Mapping[str, Reader] = FAMILIES
) -> list[LayerCosts] | None:
    """Costs of every layer of one shard, or None if the type of model is not known.

    Args:
        config: a text configuration: fields are attributes, named as in the model's
            ``config.json``, in transformers or in SGLang.
        dtypes: bytes per element of what is kept.
        shards: tensor-parallel shards.
        families: who reads which model type.

    Raises:
        AttributeError: a known model type lacks one of its fields.
        KeyError: a layer is of a type that the family does not have.
        ValueError: the layers cannot be divided over the shards, or a variant is not known.
    """
    reader = families.get(config.model_type)
    return None if reader is None else reader(config, dtypes, shards)

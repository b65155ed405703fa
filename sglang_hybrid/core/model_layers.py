"""Layer costs from a Hugging Face model configuration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_hybrid.core import linear_attention_families as linear
from sglang_hybrid.core import mamba_families as mamba
from sglang_hybrid.core.config_fields import Dtypes, Reader
from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.paper import paper_hybrid

__all__ = ["READERS", "Dtypes", "layers_of", "read_config"]

_MOST_BYTES = 2**24
"""Of a ``config.json``; those of real models have some kilobytes."""

READERS: dict[str, Reader] = {
    "bamba": mamba.bamba,
    "falcon_h1": mamba.falcon_h1,
    "granitemoehybrid": mamba.granite,
    "hymba": mamba.hymba,
    "jamba": mamba.jamba,
    "kimi_linear": linear.kimi_linear,
    "lfm2": linear.lfm2,
    "lfm2_moe": linear.lfm2_moe,
    "marconi_paper": paper_hybrid,
    "nemotron_h": mamba.nemotron_h,
    "qwen3_5": linear.qwen3_5_dense,
    "qwen3_5_moe": linear.qwen3_next,
    "qwen3_5_moe_text": linear.qwen3_next,
    "qwen3_5_text": linear.qwen3_5_dense,
    "qwen3_next": linear.qwen3_next,
    "zamba2": mamba.zamba2,
}
"""Model types of configurations that are known, and who reads them."""


def layers_of(config: Any, dtypes: Dtypes, *, shards: int = 1) -> list[LayerCosts] | None:
    """Costs of every layer of one shard, or None if the type of model is not known.

    Args:
        config: a text configuration: fields are attributes, named as in the model's
            ``config.json``, in transformers or in SGLang.
        dtypes: bytes per element of what is kept.
        shards: tensor-parallel shards.

    Raises:
        AttributeError: a known model type lacks one of its fields.
        KeyError: a layer is of a type that the family does not have.
        ValueError: the layers cannot be divided over the shards, or a variant is not known.
    """
    reader = READERS.get(config.model_type)
    return None if reader is None else reader(config, dtypes, shards)


def read_config(path: str | Path) -> SimpleNamespace:
    """The text configuration of a ``config.json``, or of the folder that has it.

    Raises:
        ValueError: there is no such file, or it is not a model's configuration.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ValueError(
            f"{file} is not a model's configuration: it has more than {_MOST_BYTES} bytes"
        )
    try:
        fields = json.loads(text.decode("utf-8"))
    except ValueError as error:
        reason = str(error).split("; use sys.set_int_max_str_digits")[0]
        raise ValueError(f"{file} is not JSON: {reason}") from error
    except RecursionError:
        raise ValueError(f"{file} is not a model's configuration: nested too deeply") from None
    if isinstance(fields, dict) and isinstance(fields.get("text_config"), dict):
        fields = {"model_type": fields.get("model_type"), **fields["text_config"]}
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise ValueError(f"{file} is not a model's configuration: it has no model_type")
    return SimpleNamespace(**fields)

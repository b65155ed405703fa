"""Costs of well-known hybrid models, and of any model whose ``config.json`` is at hand."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from sglang_hybrid.core.checked_config import CheckedConfig, check_sizes
from sglang_hybrid.core.config_fields import shown
from sglang_hybrid.core.costs import LayerCosts, ModelCosts
from sglang_hybrid.core.model_layers import READERS, Dtypes, layers_of, read_config
from sglang_hybrid.core.preset_configs import PRESETS

_MOST_SHARDS = 2**16
_COMPARED = 60
"""Characters of a name that are compared with those that are known."""

__all__ = ["DTYPE_BYTES", "PRESETS", "LayerGroup", "Model", "load_model"]

DTYPE_BYTES: dict[str, float] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Types of KV and states that may be asked for, and bytes of one element."""


@dataclass(frozen=True)
class LayerGroup:
    """Equal layers of a model: ``count`` times ``costs``."""

    kind: str
    count: int
    costs: LayerCosts


@dataclass(frozen=True)
class Model:
    """Costs of one tensor-parallel shard of a model.

    Attributes:
        name: the preset or the path that was asked for.
        costs: those of the whole shard.
        layers: its layers, equal ones together, in the order in which they first occur.
        notes: what a user of the figures should know.
    """

    name: str
    costs: ModelCosts
    layers: tuple[LayerGroup, ...]
    notes: tuple[str, ...]


def load_model(
    name_or_path: str,
    *,
    tp: int = 1,
    kv_dtype: str = "bfloat16",
    ssm_dtype: str = "float32",
    conv_dtype: str = "bfloat16",
) -> Model:
    """Costs of a preset, or of the model of a ``config.json`` (the file or its folder).

    Args:
        name_or_path: a name in `PRESETS`, or a path.
        tp: tensor-parallel shards; the costs are those of one of them.
        kv_dtype, ssm_dtype, conv_dtype: types of the KV, of recurrent states and of
            convolution windows, names in `DTYPE_BYTES`. The defaults are SGLang's. The
            paper's presets have types of their own.

    Raises:
        ValueError: an argument is wrong, or the costs of the model are not known.
    """
    if not 1 <= tp <= _MOST_SHARDS:
        raise ValueError(f"tp={shown(tp)} must be at least 1, at most {_MOST_SHARDS}")
    dtypes = Dtypes(
        kv=_dtype_bytes("kv_dtype", kv_dtype),
        ssm=_dtype_bytes("ssm_dtype", ssm_dtype),
        conv=_dtype_bytes("conv_dtype", conv_dtype),
    )
    preset = PRESETS.get(name_or_path)
    config = SimpleNamespace(**preset.config) if preset else _read(name_or_path)
    check_sizes(config, name_or_path)
    layers = _layers(config, dtypes, tp, name_or_path)
    notes = preset.notes if preset else ()
    if tp > 1:
        notes = (*notes, f"figures are those of one of {tp} tensor-parallel shards")
    return Model(name_or_path, ModelCosts.of(layers), grouped(layers), notes)


def grouped(layers: Iterable[LayerCosts]) -> tuple[LayerGroup, ...]:
    """Equal layers together, in the order of their first occurrence."""
    return tuple(LayerGroup(costs.kind, n, costs) for costs, n in Counter(layers).items())


def _dtype_bytes(argument: str, name: str) -> float:
    if name not in DTYPE_BYTES:
        raise ValueError(
            f"{argument}={shown(name)} is not a known type; choose from {', '.join(DTYPE_BYTES)}"
            + _closest(name, DTYPE_BYTES)
        )
    return DTYPE_BYTES[name]


def _closest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name[:_COMPARED], known, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _read(path: str) -> SimpleNamespace:
    try:
        exists = Path(path).exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if not exists:
        raise ValueError(
            f"{shown(path)} is neither a preset nor a path; presets are {', '.join(PRESETS)}"
            + _closest(path, PRESETS)
        )
    return read_config(path)


def _layers(config: SimpleNamespace, dtypes: Dtypes, tp: int, name: str) -> list[LayerCosts]:
    """Layers of a hybrid model; every problem is a ValueError that names the model."""
    try:
        layers = layers_of(CheckedConfig(config, name), dtypes, shards=tp)
    except AttributeError as error:
        raise ValueError(
            f"{name}: the configuration lacks {error.name!r}, which a model of type "
            f"{shown(config.model_type)} needs"
        ) from error
    except KeyError as error:
        raise ValueError(
            f"{name}: {shown(error.args[0])} is not known in a model of type "
            f"{shown(config.model_type)}"
        ) from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise ValueError(f"{name}: {error}") from error
    if layers is None:
        raise ValueError(
            f"{name}: {shown(config.model_type)} is not a known type of hybrid model; known are "
            f"{', '.join(READERS)}{_closest(config.model_type, READERS)}. A model of attention "
            "layers only has no state to checkpoint"
        )
    if not any(layer.state_bytes for layer in layers):
        raise ValueError(f"{name}: no layer has a state, so there is nothing to checkpoint")
    return layers

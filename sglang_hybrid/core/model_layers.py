"""Layer costs from a Hugging Face model configuration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_hybrid.core import model_families
from sglang_hybrid.core.config_fields import Dtypes, Reader
from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.paper import paper_hybrid

__all__ = ["READERS", "Dtypes", "layers_of", "read_config"]

_MOST_BYTES = 2**24
"""Of a ``config.json``; those of real models have some kilobytes."""

READERS: dict[str, Reader] = {**model_families.FAMILIES, "marconi_paper": paper_hybrid}
"""Model types of configurations that are known, and who reads them."""


def layers_of(config: Any, dtypes: Dtypes, *, shards: int = 1) -> list[LayerCosts] | None:
    """As `model_families.layers_of`, which serving uses, for the paper's model as well."""
    return model_families.layers_of(config, dtypes, shards=shards, families=READERS)


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

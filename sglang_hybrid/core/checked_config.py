"""Configurations of which only values that a model can have get through."""

from __future__ import annotations

from typing import Any, NoReturn

from sglang_hybrid.core.config_fields import shown

_NEEDED = ("hidden_size", "_heads")
_SIZES = (*_NEEDED, "_size", "_dim", "_layers", "_rank", "_kernel", "_groups", "_experts", "_state")


MAX_LAYERS = 10_000
"""Layers of a model, and the longest list of a configuration that is read."""

_LARGEST = 2**31 - 1
_TEXTS = ("model_type", "hybrid_override_pattern")
_DIVISORS = (*_NEEDED, "_period", "_interval", "_step", "_freq", "groups", "_multiple_of")
_FRACTIONS = ("_expand", "_multiplier", "bytes_per_state_dim")


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

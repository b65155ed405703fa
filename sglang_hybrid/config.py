"""Configuration of the cache: the keys of `--cache-config`.

`CacheConfig` is the one place that states every key with its type, default and
allowed values. The help text of the flag, the table in the documentation and
the error messages are all rendered from it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from sglang_hybrid.core.policies import MAX_ALPHA

SOURCE = "--cache-config"
"""How messages call the configuration; the keyword of `sgl.Engine` is `cache_config`."""

_SHOWN_CHARS = 60
"""Values longer than this are shortened in messages, which are one line each."""

_MAX_TOKENS = 2**31 - 1
"""Bound of integer keys: `/server_info` cannot carry integers beyond 64 bits."""

_DEFAULT_ALPHA = {"utility": 0.5, "marconi": 1.0, "lru": 0.0}

_NOT_YET_KEYS = ("ghost_forks", "system_end", "tuner", "branch_checkpoint")
_NOT_YET_VALUES = {("policy", "auto")}


class ConfigError(ValueError):
    """A configuration that cannot be used; its message is one line for the user."""


def _key(default: Any, *, kind: str, allowed: str, meaning: str, **constraints: Any) -> Any:
    """A field of `CacheConfig` with what the documentation says about it."""
    extra: dict[str, JsonValue] = {"kind": kind, "allowed": allowed}
    return Field(default, description=meaning, json_schema_extra=extra, **constraints)


class CacheConfig(BaseModel):
    """What `--cache-config` sets. Build it with `CacheConfig.parse`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    policy: Literal["utility", "marconi", "lru"] = _key(
        "utility",
        kind="string",
        allowed='"utility", "marconi", "lru"',
        meaning="How eviction orders its victims.",
    )
    alpha: float | None = _key(
        None,
        kind="number or null",
        allowed=f"a number from 0 to {MAX_ALPHA:g} (null: 0.5 for utility, 1.0 for marconi; "
        "lru: only 0)",
        meaning="Weight of the saved computation against recency; 0 orders by recency alone.",
        ge=0,
        le=MAX_ALPHA,
        allow_inf_nan=False,
    )
    min_gain_tokens: int = _key(
        128,
        kind="integer",
        allowed=f"an integer from 1 to {_MAX_TOKENS}",
        meaning="A branch point gets a checkpoint if it lies at least this far beyond the hit.",
        ge=1,
        le=_MAX_TOKENS,
    )
    prompt_end: Literal["auto", "always", "never"] = _key(
        "auto",
        kind="string",
        allowed='"auto", "always", "never"',
        meaning="Whether the end of a prompt gets a checkpoint; auto: as a first victim, "
        "until one of these is hit.",
    )
    chunk_boundary: Literal["first_victims", "never"] = _key(
        "first_victims",
        kind="string",
        allowed='"first_victims", "never"',
        meaning="Whether states at the boundaries of prefill chunks are kept, and how.",
    )
    bucket_width: float = _key(
        0.25,
        kind="number",
        allowed="a finite number >= 0 (0: exact order)",
        meaning="Width of a bucket of the victim index, in the natural logarithm of the score.",
        ge=0,
        allow_inf_nan=False,
    )
    strict: bool = _key(
        False,
        kind="boolean",
        allowed="true, false",
        meaning="Check the cache's integrity after every operation and raise instead of "
        "degrading; for tests.",
    )

    @model_validator(mode="after")
    def _alpha_fits_policy(self) -> CacheConfig:
        if self.policy == "lru" and self.alpha:
            raise ValueError("lru-alpha")
        return self

    @property
    def effective_alpha(self) -> float:
        """`alpha`, or the default of the policy where it is not given."""
        return _DEFAULT_ALPHA[self.policy] if self.alpha is None else self.alpha

    def effective(self) -> dict[str, Any]:
        """Every key with the value in effect, ready for JSON."""
        return {**self.model_dump(), "alpha": self.effective_alpha}

    @classmethod
    def parse(cls, source: str | Mapping[str, Any] | CacheConfig) -> CacheConfig:
        """Read a JSON object, or a mapping with the same keys.

        Raises:
            ConfigError: one line that names the key, its value, what is allowed
                and what to do.
        """
        if isinstance(source, CacheConfig):
            return source
        values = _load_json(source) if isinstance(source, str) else source
        if not isinstance(values, Mapping):
            raise ConfigError(_not_an_object(source))
        values = dict(values)
        for key, value in values.items():
            _check_known(key, value)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(_explain(error, values)) from None


def _load_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(
            f"{SOURCE}: the JSON is nested too deeply ({_shown(text)}); allowed: one flat "
            "object; remove the nesting"
        ) from None
    except ValueError as error:
        reason = str(error).split("; use sys.set_int_max_str_digits")[0]
        raise ConfigError(
            f"{SOURCE}: {_shown(text)} is not valid JSON ({reason}); allowed: a JSON object "
            f'such as {{"policy": "utility"}}; check quotes and commas'
        ) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ConfigError(
                f"{SOURCE}: key {_shown(key)} is given twice ({_shown(values[key])}, then "
                f"{_shown(value)}); allowed: each key once; remove one of them"
            )
        values[key] = value
    return values


def _not_an_object(source: Any) -> str:
    value = source if isinstance(source, str) else _shown(source)
    return (
        f"{SOURCE}: {_shortened(value)} is not a JSON object; allowed: an object such as "
        f'{{"policy": "utility"}} with the keys {_known_keys()}'
    )


def _check_known(key: Any, value: Any) -> None:
    if isinstance(key, str) and key in CacheConfig.model_fields:
        if isinstance(value, str) and (key, value) in _NOT_YET_VALUES:
            raise ConfigError(
                f"{SOURCE}: {key} = {_shown(value)} is not available in this version; allowed: "
                f"{_allowed(key)}; use one of these"
            )
        return
    if key in _NOT_YET_KEYS:
        raise ConfigError(
            f"{SOURCE}: key {_shown(key)} (value {_shown(value)}) is not available in this "
            f"version; allowed keys: {_known_keys()}; remove it"
        )
    close = difflib.get_close_matches(str(key)[:_SHOWN_CHARS], CacheConfig.model_fields, n=1)
    hint = f'did you mean "{close[0]}"?' if close else "remove it"
    raise ConfigError(
        f"{SOURCE}: unknown key {_shown(key)} (value {_shown(value)}); allowed keys: "
        f"{_known_keys()}; {hint}"
    )


def _explain(error: ValidationError, values: Mapping[str, Any]) -> str:
    """The first problem that pydantic found, as one line."""
    location = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    if not location:
        return (
            f"{SOURCE}: alpha = {_shown(values['alpha'])} has no meaning with policy "
            '"lru", which orders by recency alone; allowed: 0 or null; remove alpha, or choose '
            'policy "utility" or "marconi"'
        )
    key = str(location[0])
    default = _shown(CacheConfig.model_fields[key].default)
    return (
        f"{SOURCE}: {key} = {_shown(values[key])} is not allowed; allowed: {_allowed(key)}; "
        f"correct it, or remove it for the default {default}"
    )


def _shown(value: Any) -> str:
    """`value` as JSON on one short line, whatever it is."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"a Python {type(value).__name__}"
    return _shortened(text)


def _shortened(text: str) -> str:
    """`text` on one line, cut to a length that a terminal shows."""
    # `isprintable` is false for line breaks, control characters and lone surrogates.
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _extra(key: str) -> dict[str, str]:
    extra = CacheConfig.model_fields[key].json_schema_extra
    assert isinstance(extra, dict)
    return {name: str(text) for name, text in extra.items()}


def _allowed(key: str) -> str:
    return _extra(key)["allowed"]


def _known_keys() -> str:
    return ", ".join(CacheConfig.model_fields)


def markdown_table() -> str:
    """The table of keys, as the documentation shows it."""
    lines = ["| Key | Type | Default | Allowed | Meaning |", "|---|---|---|---|---|"]
    for key, field in CacheConfig.model_fields.items():
        extra = _extra(key)
        default = json.dumps(field.default)
        lines.append(
            f"| `{key}` | {extra['kind']} | `{default}` | {extra['allowed']} "
            f"| {field.description} |"
        )
    return "\n".join(lines) + "\n"


def help_text() -> str:
    """Help of `--cache-config` on the command line."""
    keys = "; ".join(
        f"{key} (default {json.dumps(field.default)}): {_allowed(key)}"
        for key, field in CacheConfig.model_fields.items()
    )
    return f"Configuration of --cache hybrid-marconi, as a JSON object with the keys {keys}."

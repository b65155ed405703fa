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

_START_POLICY = {"auto": "density"}
_START_ALPHA = {"utility": 0.5, "marconi": 0.0, "lru": 0.0, "density": 0.0}
"""Alpha where none is given; what is tuned starts from it."""


class ConfigError(ValueError):
    """A configuration that cannot be used; its message is one line for the user."""


def _key(default: Any, *, kind: str, allowed: str, meaning: str, **constraints: Any) -> Any:
    """A field of `CacheConfig` with what the documentation says about it."""
    extra: dict[str, JsonValue] = {"kind": kind, "allowed": allowed}
    return Field(default, description=meaning, json_schema_extra=extra, **constraints)


class CacheConfig(BaseModel):
    """What `--cache-config` sets. Build it with `CacheConfig.parse`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    policy: Literal["auto", "utility", "marconi", "lru", "density"] = _key(
        "auto",
        kind="string",
        allowed='"auto", "utility", "marconi", "lru", "density"',
        meaning="How eviction orders its victims. auto chooses policy, alpha and admission by "
        "itself while serving, marconi its alpha; the others stay as they are.",
    )
    alpha: float | None = _key(
        None,
        kind="number or null",
        allowed=f"a number from 0 to {MAX_ALPHA:g} with policy utility or marconi (null: 0.5 for "
        "utility, tuned for marconi), 0 with lru",
        meaning="Weight of the saved computation against recency; 0 orders by recency alone. "
        "A number is kept as it is.",
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
    ghost_forks: bool = _key(
        True,
        kind="boolean",
        allowed="true, false",
        meaning="Whether the deepest point of a prompt where sequences are known to have "
        "diverged gets a checkpoint even when its KV has gone.",
    )
    system_end: bool = _key(
        True,
        kind="boolean",
        allowed="true, false",
        meaning="Whether the end of the system message gets a checkpoint at first sight, where "
        "the chat template tells it.",
    )
    branch_checkpoint: Literal["exact", "split", "chunk"] = _key(
        "exact",
        kind="string",
        allowed='"exact", "split", "chunk" (not with strategy no_buffer)',
        meaning="How the state inside a prompt is had. exact: the prefill saves it at exactly "
        "its token; split: the prefill is cut there and goes on in another pass; chunk: the "
        "forward saves one state, on SGLang's grid.",
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
    tuner: Literal["shadows", "bootstrap"] = _key(
        "shadows",
        kind="string",
        allowed='"shadows", "bootstrap" (with policy marconi and no alpha)',
        meaning="How alpha and policy are tuned. shadows: continuously, by caches simulated beside "
        "the real one; bootstrap: LRU until the first eviction and a window after it, then once, "
        "as in the paper.",
    )
    tuner_window: int = _key(
        100,
        kind="integer",
        allowed="an integer from 10 to 100000",
        meaning="Requests between two decisions of the tuner.",
        ge=10,
        le=100_000,
    )
    bootstrap_factor: int = _key(
        5,
        kind="integer",
        allowed="an integer from 5 to 15",
        meaning="Length of the bootstrap window, in multiples of the requests before the first "
        "eviction.",
        ge=5,
        le=15,
    )
    objective: Literal["flops", "tokens"] = _key(
        "flops",
        kind="string",
        allowed='"flops", "tokens"',
        meaning="What the tuner maximises: FLOPs saved, or tokens hit.",
    )
    record_requests: int = _key(
        4096,
        kind="integer",
        allowed="an integer from 0 to 1000000 (0: none)",
        meaning="Requests remembered as hashes of pages, for `hybrid-marconi record`.",
        ge=0,
        le=1_000_000,
    )
    strict: bool = _key(
        False,
        kind="boolean",
        allowed="true, false",
        meaning="Check the cache's integrity after every operation and raise instead of "
        "degrading; for tests.",
    )

    @model_validator(mode="after")
    def _fits_policy(self) -> CacheConfig:
        takes_alpha = self.policy in ("utility", "marconi")
        if self.alpha is not None and not takes_alpha and (self.alpha or self.policy != "lru"):
            raise ValueError("alpha")
        if self.tuner == "bootstrap" and not (self.policy == "marconi" and self.is_tuned):
            raise ValueError("tuner")
        return self

    @property
    def is_tuned(self) -> bool:
        """Whether a tuner chooses what is in force."""
        return self.policy == "auto" or (self.policy == "marconi" and self.alpha is None)

    @property
    def start_policy(self) -> str:
        """The policy in force at start-up."""
        return _START_POLICY.get(self.policy, self.policy)

    @property
    def effective_alpha(self) -> float:
        """`alpha`, or what the policy starts with where it is not given."""
        return _START_ALPHA[self.start_policy] if self.alpha is None else self.alpha

    @property
    def _fixed_alpha(self) -> float | None:
        return None if self.policy == "density" else self.effective_alpha

    def policy_in_words(self) -> str:
        """The policy, and what is in force at start-up."""
        start = self.start_policy
        words = start if start == self.policy else f"{self.policy}, at first {start}"
        return words if start in ("lru", "density") else f"{words}, alpha {self.effective_alpha:g}"

    def effective(self) -> dict[str, Any]:
        """Every key with the value in effect, ready for JSON."""
        return {**self.model_dump(), "alpha": None if self.is_tuned else self._fixed_alpha}

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
        return
    name = key[:_SHOWN_CHARS] if isinstance(key, str) else _shown(key)
    close = difflib.get_close_matches(name, CacheConfig.model_fields, n=1)
    hint = f'did you mean "{close[0]}"?' if close else "remove it"
    raise ConfigError(
        f"{SOURCE}: unknown key {_shown(key)} (value {_shown(value)}); allowed keys: "
        f"{_known_keys()}; {hint}"
    )


def _explain(error: ValidationError, values: Mapping[str, Any]) -> str:
    """The first problem that pydantic found, as one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = first["loc"]
    policy = _shown(values.get("policy", CacheConfig.model_fields["policy"].default))
    if not location and first["msg"].endswith("tuner"):
        return (
            f'{SOURCE}: tuner = "bootstrap" tunes the alpha of policy "marconi" only, got policy '
            f'{policy}, alpha {_shown(values.get("alpha"))}; allowed: policy "marconi" without '
            "alpha; change them, or remove tuner"
        )
    if not location:
        return (
            f"{SOURCE}: alpha = {_shown(values['alpha'])} has no meaning with policy {policy}; "
            'allowed: null, or 0 with "lru"; remove alpha, or choose policy "utility" or "marconi"'
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

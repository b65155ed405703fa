"""What travels inside SGLang's own configuration record, `ServerArgs`.

SGLang pickles private attributes of the record with its fields, so that one
attribute set in the launcher reaches every process of the server. Records that do
not select this cache carry nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from sglang_hybrid.config import CacheConfig, ConfigError

CACHE_NAME = "hybrid-marconi"
"""The value of `--cache` and `--radix-cache-backend` that selects this cache."""

_ATTRIBUTE = "_hybrid_marconi"


@dataclass(frozen=True)
class Notes:
    """What a `ServerArgs` carries for this package.

    Attributes:
        config: the keys of `CacheConfig`; None if the user gave no configuration.
        explicit: fields of the record that the user set, where the value alone
            cannot tell.
        from_command_line: errors end the process with a line instead of raising.
        validated: the launcher has checked the record.
    """

    config: Mapping[str, Any] | None = None
    explicit: tuple[str, ...] = ()
    from_command_line: bool = False
    validated: bool = False


def notes_of(server_args: Any) -> Notes:
    """The notes on a record; the defaults if there are none."""
    notes: Notes = getattr(server_args, _ATTRIBUTE, None) or Notes()
    return notes


def update_notes(server_args: Any, **changes: Any) -> None:
    """Replace some of the notes on a record."""
    setattr(server_args, _ATTRIBUTE, replace(notes_of(server_args), **changes))


def set_config(server_args: Any, config: str | Mapping[str, Any] | CacheConfig) -> None:
    """Put a cache configuration on a record, for code that builds `ServerArgs` itself.

    Raises:
        ConfigError: the configuration is not valid.
    """
    update_notes(server_args, config=CacheConfig.parse(config).model_dump())


def config_of(server_args: Any) -> CacheConfig:
    """The cache configuration of a record; the defaults if none was given."""
    return CacheConfig.parse(notes_of(server_args).config or {})


def is_active(server_args: Any) -> bool:
    """Whether the record selects this cache."""
    return getattr(server_args, "radix_cache_backend", None) == CACHE_NAME


def explicitly_set(server_args: Any, field: str, default: Any) -> bool:
    """Whether the user set a field of the record, even to its default value."""
    return field in notes_of(server_args).explicit or getattr(server_args, field) != default


def mark_explicit(server_args: Any, fields: Iterable[str]) -> None:
    """Remember that the user set these fields."""
    update_notes(server_args, explicit=tuple(fields))


def fail(server_args: Any, message: str) -> NoReturn:
    """Refuse a record with one line.

    Raises:
        SystemExit: the record comes from a command line.
        ConfigError: the record comes from code, `sgl.Engine` for example.
    """
    if notes_of(server_args).from_command_line:
        raise SystemExit(f"sglang-hybrid: error: {message}") from None
    raise ConfigError(message) from None

"""Flags of the launcher and the keyword of `sgl.Engine`.

`--cache` is another spelling of `--radix-cache-backend`; `--cache-config` goes into
the notes on the record (see `record`). Both are read before SGLang does anything
with its arguments.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_hybrid.adapter import record
from sglang_hybrid.adapter.record import CACHE_NAME
from sglang_hybrid.config import SOURCE, ConfigError, help_text

_LAZY_BACKENDS = frozenset({"flexkv"})
"""Backends of SGLang itself that are registered only when the scheduler needs them."""

_TRACKED_FIELDS = ("mamba_track_interval", "radix_eviction_policy")
"""Fields whose value alone does not tell whether the user set them."""


def add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    """Hook after `ServerArgs.add_cli_args`."""
    parser.add_argument(
        "--cache",
        dest="radix_cache_backend",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"Prefix cache, another spelling of --radix-cache-backend. {CACHE_NAME} is the "
        "cache of sglang-hybrid, for models with attention and SSM layers.",
    )
    parser.add_argument(
        "--cache-config",
        metavar="JSON",
        default=None,
        help=help_text().replace("%", "%%"),
    )
    for action in parser._actions:
        # Absent unless given, which is how `read_flags` tells a default from the
        # same value set by the user; `from_cli_args` skips what is absent.
        if action.dest == "mamba_track_interval":
            action.default = argparse.SUPPRESS


def read_flags(server_args: Any, _cls: type, args: argparse.Namespace) -> None:
    """Hook after `ServerArgs.from_cli_args`.

    Raises:
        SystemExit: an unknown cache, a wrong configuration, or one without our cache.
    """
    if not hasattr(args, "cache_config"):
        return  # a parser that was built before the plugin was loaded
    explicit = ("mamba_track_interval",) if hasattr(args, "mamba_track_interval") else ()
    try:
        _take_over(server_args, args.cache_config, explicit)
    except ConfigError as error:
        raise SystemExit(f"sglang-hybrid: error: {error}") from None
    if record.is_active(server_args):
        record.update_notes(server_args, from_command_line=True)


def engine_server_args(cache_config: Any = None, **kwargs: Any) -> Any:
    """What `sgl.Engine` builds its record with: `ServerArgs` and the keyword `cache_config`.

    Raises:
        ConfigError: as `read_flags`.
    """
    from sglang.srt.server_args import ServerArgs

    server_args = ServerArgs(**kwargs)
    explicit = tuple(field for field in _TRACKED_FIELDS if field in kwargs)
    _take_over(server_args, cache_config, explicit)
    return server_args


def _take_over(server_args: Any, config: Any, explicit: tuple[str, ...]) -> None:
    """Check the chosen cache, then note configuration and explicit fields."""
    _check_name(server_args.radix_cache_backend)
    if not record.is_active(server_args):
        if config is not None:
            raise ConfigError(
                f"{SOURCE} is given, but the cache is "
                f"{server_args.radix_cache_backend or 'the one built into SGLang'}; allowed: with "
                f"--cache {CACHE_NAME}; add that flag or remove {SOURCE}"
            )
        return
    record.mark_explicit(server_args, explicit)
    if config is not None:
        record.set_config(server_args, config)


def _check_name(name: str | None) -> None:
    """SGLang itself looks the name up only after it has loaded the weights."""
    if name in (None, CACHE_NAME):
        return
    from sglang.srt.mem_cache.registry import registered_radix_cache_backends

    known = {CACHE_NAME, *registered_radix_cache_backends(), *_LAZY_BACKENDS}
    if name in known:
        return
    raise ConfigError(
        f"--cache {name!r} (--radix-cache-backend) is not a registered cache; allowed: "
        f"{', '.join(sorted(known))}; correct the name, or leave the flag out for the cache built "
        "into SGLang"
    )

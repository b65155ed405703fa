"""Entry point of the group `sglang.srt.plugins`: runs in every process of a server.

Imports at module level are from the standard library only. SGLang logs an exception
of a plugin and goes on without it, so nothing may fail before `register` can decide
whether that is acceptable.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

logger = logging.getLogger(__name__)

_ENGINE_MODULE = "sglang.srt.entrypoints.engine"
_REGISTRY_MODULE = "sglang.srt.mem_cache.registry"


def register() -> None:
    """Add the flags, the checks of the launcher and the cache backend to SGLang.

    Raises:
        SystemExit: it failed although the command line asks for this cache; a server
            without it would be worse than none.
    """
    try:
        _register()
    except Exception as error:
        line = f"the plugin could not be loaded: {type(error).__name__}: {error}".splitlines()[0]
        if _asked_for(sys.argv):
            raise SystemExit(
                f"sglang-hybrid: error: {line}; run `hybrid-marconi doctor`, or leave out --cache"
            ) from error
        logger.warning("sglang-hybrid: %s; --cache hybrid-marconi is not available", line)


def _register() -> None:
    from sglang_hybrid.adapter import flags, hooks, serving

    hooks.register(hooks.LAUNCH)
    # Importing these modules takes seconds, also for `--help`. A scheduler process has
    # imported the registry before it loads plugins; only a process that uses
    # `sgl.Engine` has imported that one.
    if _REGISTRY_MODULE in sys.modules:
        serving.register_backend()
    if engine := sys.modules.get(_ENGINE_MODULE):
        engine.Engine.server_args_class = staticmethod(flags.engine_server_args)


def _asked_for(argv: Sequence[str]) -> bool:
    """Whether a command line selects or configures this cache."""
    return any(
        argument.split("=", 1)[0] in ("--cache", "--cache-config") or "hybrid-marconi" in argument
        for argument in argv
    )

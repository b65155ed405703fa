"""Entry point of the group `sglang.srt.plugins`: runs in every process of a server.

Imports at module level are from the standard library only. SGLang logs an exception
of a plugin and goes on without it, so nothing may fail before `register` can decide
whether that is acceptable.
"""

from __future__ import annotations

import itertools
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
        problem = _unsupported_version()
        if problem is None:
            _install_hooks()
        _register_backend()
    except Exception as error:
        logger.debug("The plugin could not be loaded", exc_info=True)
        problem = f"the plugin could not be loaded: {type(error).__name__}: {error}".splitlines()[0]
        problem += "; allowed: a plugin that loads; run `hybrid-marconi doctor`"
    if problem is None:
        return
    if _asked_for(sys.argv):
        raise SystemExit(f"sglang-hybrid: error: {problem}, or leave out --cache")
    logger.warning("sglang-hybrid: --cache hybrid-marconi is not available: %s", problem)


def _unsupported_version() -> str | None:
    """What is wrong with the installed SGLang, whose functions are then left alone."""
    from sglang_hybrid.adapter import names

    return None if names.unsupported_allowed() else names.version_problem()


def _install_hooks() -> None:
    from sglang_hybrid.adapter import flags, hooks

    hooks.register(hooks.LAUNCH)
    # Only a process that uses `sgl.Engine` has the module, and importing it is slow.
    if engine := sys.modules.get(_ENGINE_MODULE):
        engine.Engine.server_args_class = staticmethod(flags.engine_server_args)


def _register_backend() -> None:
    """Without hooks too: the factory then refuses with a reason.

    A scheduler process has imported the registry before it loads plugins; the launcher
    has not, and would spend seconds on it, also for `--help`.
    """
    from sglang_hybrid.adapter import serving

    if _REGISTRY_MODULE in sys.modules:
        serving.register_backend()


def _asked_for(argv: Sequence[str]) -> bool:
    """Whether a command line selects or configures this cache."""
    words = [word for argument in argv for word in argument.split("=", 1)]
    if "--cache" in words or "--cache-config" in words:
        return True
    return ("--radix-cache-backend", "hybrid-marconi") in itertools.pairwise(words)

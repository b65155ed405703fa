"""Compilation of the replay with numba.

Compiled functions are cached beside their source files, so only the first use of an
installation waits for the compiler, and they release the interpreter lock, so that
threads replay side by side.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def _sources_stamp() -> tuple[tuple[str, int, int], ...]:
    """Identifies the sources that compiled functions may have been built from."""
    sim = Path(__file__).parent
    core = [sim.parent / "core" / f"{name}.py" for name in ("scores", "hit_density", "checkpoints")]
    compiled = [path for path in sim.glob("*.py") if b"sim.jit import" in path.read_bytes()]
    files = sorted([*core, *compiled, *sim.glob("engine/*.py"), *sim.glob("policies/*.py")])
    return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)


_STAMP = _sources_stamp()


def _compile(function: F, **options: Any) -> F:
    dispatcher = numba.njit(cache=True, nogil=True, **options)(function)
    # numba looks at the function's own file only, but what it calls is compiled into it.
    file = dispatcher._cache._cache_file
    file._source_stamp = (file._source_stamp, _STAMP)
    result: F = dispatcher
    return result


def compiled(function: F) -> F:
    """``function``, compiled at its first call."""
    return _compile(function)


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether compiled code of ``function`` is there from an earlier process."""
    dispatcher: Any = function
    return bool(dispatcher._cache._cache_file._load_index())


def internal(function: F) -> F:
    """``function``, compiled for compiled callers only.

    Without what Python needs to call it, and without reference counts of the arrays, which
    the caller holds: both would cost more than the work itself.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def compiled_with(function: F, **replacements: Any) -> F:
    """A compiled copy of ``function`` in which global names stand for ``replacements``.

    Code of `core` is plain Python, so what it calls must be replaced by compiled copies.
    """
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replacements},
        function.__name__,
        function.__defaults__,
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return internal(copy)  # type: ignore[return-value]

"""Compilation of the replay with numba.

Compiled functions are cached beside their source files, so only the first use of an
installation waits for the compiler, and they release the interpreter lock, so that
threads replay side by side.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """``function``, compiled at its first call."""
    result: F = numba.njit(cache=True, nogil=True)(function)
    return result


def internal(function: F) -> F:
    """``function``, compiled for compiled callers only.

    Without what Python needs to call it, and without reference counts of the arrays, which
    the caller holds: both would cost more than the work itself.
    """
    result: F = numba.njit(
        cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False
    )(function)
    return result


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

"""Compilation of the replay with numba.

Compiled functions are cached beside their source files, so only the first use of an
installation waits for the compiler, and they release the interpreter lock, so that
threads replay side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """``function``, compiled at its first call."""
    result: F = numba.njit(cache=True, nogil=True)(function)
    return result


def inlined(function: F) -> F:
    """The same for small functions that run per candidate."""
    result: F = numba.njit(cache=True, nogil=True, inline="always")(function)
    return result

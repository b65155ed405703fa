"""The shadow process: takes windows, steps the shadow caches, reports.

Started as ``python -m sglang_hybrid.shadow FD`` with one end of a socket pair. It ends
when the other end is closed, which is when the server ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from multiprocessing.connection import Connection

import numpy as np

from sglang_hybrid.core.pages import Hashes
from sglang_hybrid.shadow.messages import (
    RESET,
    SEARCH,
    WINDOW,
    Report,
    Settings,
    parse,
    table_to_bytes,
)
from sglang_hybrid.shadow.online import OnlineShadows, Savings
from sglang_hybrid.shadow.records import DamagedWindowError, Window, WindowBuilder

_PARENT_CHECK_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Entry point of the process."""
    os.nice(19)  # whatever the server does comes first
    _end_with_parent()
    connection: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the server has ended
    except KeyboardInterrupt:
        return


def _end_with_parent() -> None:
    """Where the system can, have it end this process with the thread that started it.

    Compiled code that never came back would not notice a closed connection.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(connection: Connection) -> None:
    """Answer messages until the connection is closed."""
    parent = os.getppid()
    settings = Settings.from_bytes(connection.recv_bytes())
    shadows = OnlineShadows(settings)
    warm_up(settings)
    while True:
        # Another process may hold a copy of the server's end, which then stays open.
        while not connection.poll(_PARENT_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        kind, generation, number, rest = parse(connection.recv_bytes())
        if kind == RESET:
            shadows.clear()
        elif kind == WINDOW:
            connection.send_bytes(_window_report(shadows, generation, number, rest).to_bytes())
        elif kind == SEARCH:
            start = time.perf_counter()
            report = _report(shadows, generation, number, shadows.search(), start, is_search=True)
            connection.send_bytes(report.to_bytes())
        else:
            raise ValueError(f"unknown kind of message {kind!r}")


def warm_up(settings: Settings) -> None:
    """Compile what a window needs before there is one; a minute if nothing is cached yet."""
    shadows = OnlineShadows(settings)
    for _ in range(2):
        builder = WindowBuilder()
        no_pages: Hashes = np.empty(0, np.uint64)
        builder.add(1, 0, no_pages)
        shadows.step(builder.take())
    if settings.is_bootstrap:
        shadows.search()


def _window_report(
    shadows: OnlineShadows, generation: int, number: int, data: memoryview
) -> Report:
    start = time.perf_counter()
    try:
        window = Window.from_bytes(data)
    except DamagedWindowError as error:
        return Report(generation, number, (), 0.0, error=str(error))
    return _report(shadows, generation, number, shadows.step(window), start)


def _report(
    shadows: OnlineShadows,
    generation: int,
    number: int,
    savings: Savings,
    start: float,
    *,
    is_search: bool = False,
) -> Report:
    tables = {arm: table_to_bytes(table) for arm, table in shadows.tables().items()}
    return Report(
        generation,
        number,
        savings.saved,
        savings.realised,
        savings.hits,
        tables,
        time.perf_counter() - start,
        is_search,
    )

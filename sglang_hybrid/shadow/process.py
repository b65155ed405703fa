"""The shadow process: takes windows, steps the shadow caches, reports.

Started as ``python -m sglang_hybrid.shadow FD`` with one end of a socket pair. It ends
when the other end is closed, which is when the server ends.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection

from sglang_hybrid.shadow.messages import (
    RESET,
    SEARCH,
    WINDOW,
    Report,
    Settings,
    parse,
    table_to_bytes,
)
from sglang_hybrid.shadow.online import OnlineShadows
from sglang_hybrid.shadow.records import Window


def main() -> None:
    """Entry point of the process."""
    os.nice(19)  # whatever the server does comes first
    connection: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the server has ended
    except KeyboardInterrupt:
        return


def serve(connection: Connection) -> None:
    """Answer messages until the connection is closed."""
    settings = Settings.from_bytes(connection.recv_bytes())
    shadows = OnlineShadows(
        settings.costs,
        settings.admission,
        settings.budget,
        settings.arms,
        objective=settings.objective,
        max_requests=settings.max_requests,
        max_pages=settings.max_pages,
    )
    take = shadows.remember if settings.is_bootstrap else shadows.step
    while True:
        kind, generation, number, rest = parse(connection.recv_bytes())
        start = time.perf_counter()
        if kind == RESET:
            shadows.reset()
            continue
        if kind == WINDOW:
            savings = take(Window.from_bytes(rest))
        elif kind == SEARCH:
            savings = shadows.search()
        else:
            raise ValueError(f"unknown kind of message {kind!r}")
        report = Report(
            generation,
            number,
            savings.saved,
            savings.realised,
            {arm: table_to_bytes(table) for arm, table in shadows.tables().items()},
            time.perf_counter() - start,
            is_search=kind == SEARCH,
        )
        connection.send_bytes(report.to_bytes())

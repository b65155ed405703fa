"""`hybrid-marconi top`: what the cache of a running server does right now."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from sglang_hybrid.cli.server import Server, ServerError
from sglang_hybrid.cli.status import StatusError, check_status
from sglang_hybrid.cli.top_figures import Figures
from sglang_hybrid.cli.top_view import screen

_SHORTEST_S = 0.2
"""Each look makes the scheduler answer once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `top`."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:30000", help="of the server, without a path")
    add("--api-key", help="sent as a bearer token")
    add(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="SECONDS",
        help=f"between two looks, at least {_SHORTEST_S} (default: %(default)s)",
    )
    add("--once", action="store_true", help="print one look and end")
    add("--json", action="store_true", help="print every look as one line of JSON")
    add("--timeout", type=float, default=10.0, help="seconds for one answer")


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_S <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(
            f"{text} is not allowed; allowed: {_SHORTEST_S} to 86400 seconds"
        )
    return seconds


def run(args: argparse.Namespace) -> int:
    """Look until interrupted, or once; 2 if the server cannot be asked."""
    looks = _looks(Server(args.url, args.api_key, args.timeout), args.interval)
    try:
        if args.json:
            _print_json(looks, args.once)
        else:
            _draw(looks, args.url, args.once)
    except ServerError as error:
        print(f"hybrid-marconi top: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _looks(server: Server, interval_s: float) -> Iterator[Figures]:
    """One look after another; all but the first know the one before."""
    before: tuple[list[dict[str, Any]], float] | None = None
    while True:
        caches, now = server.caches(), time.monotonic()
        try:
            for status in caches:
                check_status(status)
        except StatusError as error:
            raise ServerError(str(error)) from None
        if before is not None and len(before[0]) == len(caches):
            yield Figures.of(caches, before[0], now - before[1])
        else:
            yield Figures.of(caches)
        before = caches, now
        time.sleep(interval_s)


def _print_json(looks: Iterator[Figures], once: bool) -> None:
    for figures in looks:
        print(json.dumps(figures.as_dict()), flush=True)
        if once:
            return


def _draw(looks: Iterator[Figures], url: str, once: bool) -> None:
    console = Console()
    if once or not console.is_terminal:
        for figures in looks:
            console.print(screen(figures, url))
            if once:
                return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for figures in looks:
            live.update(screen(figures, url), refresh=True)

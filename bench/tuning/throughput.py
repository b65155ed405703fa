"""Requests per second of servers that take turns, so that a slow spell hits them alike."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.pages import table
from bench.tuning.client import Client
from bench.tuning.servers import Server, running
from bench.tuning.streams import Stream
from bench.tuning.workloads import Pools


def compare(
    stream: Stream,
    servers: Sequence[Server],
    model: Path,
    pools: Pools,
    *,
    rounds: int,
    concurrency: int,
    warm_up: int,
) -> str:
    """A table of requests per second: median, spread, and ratio to the first server.

    Every round starts each server anew, in alternating order, and sends it the whole
    stream, the replies of the very first run being the history. The first ``warm_up``
    requests do not count: meanwhile the process of the shadow caches starts.

    Raises:
        ValueError: nothing is left to count.
    """
    if not 1 <= warm_up < len(stream):
        raise ValueError(f"--warm-up {warm_up} is not allowed; allowed: 1 to {len(stream) - 1}")
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    hits: dict[str, float] = {}
    history: list[list[int]] | None = None
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / "server.log"
                with running(server, model, pools, log) as started:
                    client = Client(started.url, stream, history, concurrency=concurrency)
                    seen = client.send_all()
            history = history or seen.replies
            finished = sorted(seen.finished_s)
            seconds = finished[-1] - finished[warm_up - 1]
            rates[server.name].append((len(stream) - warm_up) / seconds)
            hits[server.name] = sum(seen.cached_tokens) / sum(seen.prompt_tokens)
            print(f"{server.name}: {rates[server.name][-1]:.2f} requests/s", flush=True)
    base = statistics.median(rates[servers[0].name])
    rows = []
    for name, of_server in rates.items():
        middle = statistics.median(of_server)
        spread = f"{min(of_server):.2f} to {max(of_server):.2f}"
        rows.append(
            [name, f"{middle:.2f}", spread, f"{middle / base:.3f}", f"{100 * hits[name]:.1f} %"]
        )
    header = ["server", "requests/s, median", "of all rounds", "ratio", "tokens hit"]
    return table(header, rows)

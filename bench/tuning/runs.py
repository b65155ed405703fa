"""Run workloads on servers, one server after another, and keep what was seen."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.tuning.client import Client, Run, cache_metrics, cache_state
from bench.tuning.servers import Server, running
from bench.tuning.streams import Stream
from bench.tuning.workloads import Pools

REPLIES = "replies-{}.json"


def run_all(
    streams: Sequence[Stream],
    servers: Sequence[Server],
    model: Path,
    pools: Pools,
    out: Path,
    *,
    seed: int,
    concurrency: int = 1,
    metrics: bool = False,
) -> None:
    """Each stream on a fresh server of each kind; a file per run in ``out``/STRATEGY.

    What continues a conversation continues the replies of the first server that ran the
    stream, kept beside the results, so that all servers get the same prompts.
    """
    folder = out / pools.strategy
    folder.mkdir(parents=True, exist_ok=True)
    for stream in streams:
        for server in servers:
            history = recorded_replies(out, stream)
            more = ["--enable-metrics"] if metrics else []
            with tempfile.TemporaryDirectory() as logs:
                log = Path(logs) / "server.log"
                with running(server, model, pools, log, *more) as started:
                    client = Client(started.url, stream, history, concurrency=concurrency, log=log)
                    seen = client.send_all()
                    config = cache_state(started.url).get("config")
                    if metrics:
                        seen.metrics = cache_metrics(started.url)
            if history is None:
                (out / REPLIES.format(stream.name)).write_text(_compact(seen.replies))
                history = seen.replies
            result = {
                "workload": stream.name,
                "requests": len(stream),
                "seed": seed,
                "parts": _parts(stream),
                "server": server.name,
                "config": config,
                "pools": asdict(pools),
                "concurrency": concurrency,
                "other_replies": _differences(seen, history),
                **seen.as_json(),
            }
            (folder / f"{stream.name}-{server.name}.json").write_text(_compact(result))
            rate = sum(seen.cached_tokens) / sum(seen.prompt_tokens)
            print(
                f"{pools.strategy} {stream.name:8} {server.name:10} {rate:6.1%} of tokens hit, "
                f"{seen.seconds:.0f} s, {len(result['other_replies'])} other replies",
                flush=True,
            )


def recorded_replies(out: Path, stream: Stream) -> list[list[int]] | None:
    """Replies of the server that ran ``stream`` first; None if none did.

    Raises:
        ValueError: those of another stream, of other length.
    """
    path = out / REPLIES.format(stream.name)
    if not path.exists():
        return None
    replies = json.loads(path.read_text())
    lengths = [request.output_len for request in stream.requests]
    if [len(reply) for reply in replies] != lengths:
        raise ValueError(
            f"{path} holds {len(replies)} replies of another stream; {len(lengths)} of this one "
            "are needed; remove the file, or choose another --out"
        )
    return replies


def _parts(stream: Stream) -> list[dict[str, Any]]:
    """Where each part of the workload begins."""
    parts: list[dict[str, Any]] = []
    for number, request in enumerate(stream.requests):
        if not parts or parts[-1]["name"] != request.part:
            parts.append({"request": number, "name": request.part})
    return parts


def _differences(seen: Run, history: Sequence[Sequence[int]]) -> list[int]:
    """Requests whose reply is not the recorded one."""
    pairs = zip(seen.replies, history, strict=True)
    return [number for number, (own, recorded) in enumerate(pairs) if own != list(recorded)]


def _compact(value: Any) -> str:
    """JSON with one line per key of the outermost object."""
    if not isinstance(value, dict):
        return json.dumps(value, separators=(",", ":")) + "\n"
    lines = [f'"{key}":{json.dumps(item, separators=(",", ":"))}' for key, item in value.items()]
    return "{" + ",\n".join(lines) + "}\n"

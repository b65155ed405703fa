"""Send a stream to a server, and note what became of every request."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from bench.tuning.streams import Stream

STATUS_EVERY = 20
"""Requests between two looks at the state of the cache."""

_OUR_LINES = re.compile(r"hybrid-marconi|sglang_hybrid")
_TIMEOUT_S = 120


@dataclass
class Run:
    """What a stream met on one server. Lists have one entry per request, in order.

    Attributes:
        prompt_tokens, cached_tokens: as the server reports them.
        ttft_s: seconds from sending to the first token.
        duration_s: seconds from sending to the last token.
        finished_s: seconds from the start of the stream to the last token.
        replies: generated tokens.
        status: state of the cache over time: ``request`` (so many were done) and what
            ``/server_info`` tells of ``tuning`` and ``counters``.
        log: lines of the cache in the server's log, with ``request`` at which they were seen.
        metrics: values of the cache's metrics at the end, if the server has any.
        seconds: from the first request to the end of the last.
    """

    prompt_tokens: list[int]
    cached_tokens: list[int]
    ttft_s: list[float]
    duration_s: list[float]
    finished_s: list[float]
    replies: list[list[int]]
    status: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def empty(cls, count: int) -> Run:
        times = [[0.0] * count for _ in range(3)]
        return cls([0] * count, [0] * count, *times, [[]] * count)

    def as_json(self) -> dict[str, Any]:
        """Everything but the replies, and times that follow from others."""
        values = asdict(self)
        del values["replies"], values["finished_s"]
        for name in ("ttft_s", "duration_s"):
            values[name] = [round(value, 4) for value in values[name]]
        values["seconds"] = round(self.seconds, 1)
        return values


class Client:
    """Sends one stream.

    Args:
        url: of the server, without a path.
        history: replies that later prompts continue; None: those of this server.
        concurrency: requests at a time. They start in order; one that continues another
            waits for its reply.
        log: the server's log, to be searched for lines of the cache.
    """

    def __init__(
        self,
        url: str,
        stream: Stream,
        history: Sequence[Sequence[int]] | None,
        *,
        concurrency: int = 1,
        log: Path | None = None,
    ) -> None:
        self.url, self.stream, self.concurrency = url, stream, concurrency
        self.run = Run.empty(len(stream))
        self._history = self.run.replies if history is None else history
        self._done = [threading.Event() for _ in stream.requests]
        self._log = log.open(errors="replace") if log else None
        self._start = 0.0

    def send_all(self) -> Run:
        """Send every request.

        Raises:
            requests.RequestException: a request failed.
        """
        if self._log:
            self._log.seek(0, 2)
        self._look(0)
        self._start = time.perf_counter()
        with (
            ThreadPoolExecutor(self.concurrency) as pool,
            tqdm(total=len(self.stream), unit="request", disable=None) as progress,
        ):
            for number, _ in enumerate(pool.map(self._one, range(len(self.stream))), 1):
                progress.update()
                if number % STATUS_EVERY == 0:
                    self._look(number)
        self.run.seconds = time.perf_counter() - self._start
        self._look(len(self.stream))
        return self.run

    def _one(self, number: int) -> None:
        request = self.stream.requests[number]
        try:
            if request.parent >= 0:
                self._done[request.parent].wait()
            prompt = self.stream.prompt(number, self._history)
            answer, ttft, duration = generate(self.url, prompt, request.output_len)
        finally:
            self._done[number].set()
        info = answer["meta_info"]
        self.run.prompt_tokens[number] = info["prompt_tokens"]
        self.run.cached_tokens[number] = info["cached_tokens"]
        self.run.ttft_s[number], self.run.duration_s[number] = ttft, duration
        self.run.finished_s[number] = time.perf_counter() - self._start
        self.run.replies[number] = answer["output_ids"]

    def _look(self, number: int) -> None:
        state = cache_state(self.url)
        if state:
            seen = {key: state[key] for key in ("tuning", "counters") if state.get(key)}
            self.run.status.append({"request": number, **seen})
        for line in self._log or ():
            if _OUR_LINES.search(line):
                self.run.log.append({"request": number, "line": line.strip()})


def generate(url: str, prompt: list[int], output_len: int) -> tuple[dict[str, Any], float, float]:
    """One greedy request; the answer, and seconds to its first and to its last token."""
    sampling = {"max_new_tokens": output_len, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    start = time.perf_counter()
    first: float | None = None
    last = b""
    with requests.post(f"{url}/generate", json=body, stream=True, timeout=_TIMEOUT_S) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if line.startswith(b"data:") and not line.endswith(b"[DONE]"):
                first = first or time.perf_counter() - start
                last = line
    duration = time.perf_counter() - start
    answer = json.loads(last.removeprefix(b"data:")) if last else {}
    if first is None or "output_ids" not in answer:
        raise requests.RequestException(f"the stream ended without a reply: {last[:200]!r}")
    return answer, first, duration


def cache_state(url: str) -> dict[str, Any]:
    """State of this project's cache; empty for another one."""
    info = requests.get(f"{url}/server_info", timeout=_TIMEOUT_S).json()
    state = (info.get("internal_states") or [{}])[0].get("hybrid_marconi")
    return state or {}


def cache_metrics(url: str) -> dict[str, float]:
    """This project's metrics by name and labels; empty where the server has none."""
    reply = requests.get(f"{url}/metrics", timeout=_TIMEOUT_S)
    if not reply.ok:
        return {}
    found = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            if sample.name.startswith("sglang:hybrid"):
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found

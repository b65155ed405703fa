"""Requests that are given up: by a closed connection or by ``/abort_request``, at any stage."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from soak_client import (
    DEADLINE_S,
    Given,
    Hung,
    Outcome,
    body_of,
    events_of,
    given_of,
    post,
    rid_of,
)
from soak_jobs import STAGES, Job

_FILLERS, _FILLER_TOKENS = 6, 24
_ATTEMPTS = 4
_LOGGED_S = 5.0


class Connection:
    """A streaming request whose client may leave before there is an answer.

    Sending does not wait for the server.
    """

    def __init__(self, url: str, body: Mapping) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=DEADLINE_S
        )
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/generate", json.dumps(body), headers)
        self.events = self._events()

    def wait(self, seconds: float) -> None:
        """Until the server says something, but no longer."""
        sock = self._connection.sock
        sock.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            sock.recv(1, socket.MSG_PEEK)
        sock.settimeout(DEADLINE_S)

    def _events(self) -> Iterator[dict]:
        try:
            response = self._connection.getresponse()
            assert response.status == 200, response.read()
            yield from events_of(iter(response.readline, b""))
        except TimeoutError as error:
            raise Hung(f"nothing more of a stream within {DEADLINE_S} s") from error

    def close(self) -> None:
        self._connection.close()


class Crowd:
    """More requests than run at once: one sent behind them has to wait.

    Args:
        body: of the request that is to wait.
    """

    def __init__(self, url: str, body: Mapping, space: Mapping, prioritised: bool) -> None:
        self.prompts = [[*body["input_ids"][-20:], 33 + i] for i in range(_FILLERS)]
        sampling = {"max_new_tokens": _FILLER_TOKENS, "temperature": 0, "ignore_eos": True}
        fields = {
            "input_ids": self.prompts,
            "sampling_params": sampling,
            "rid": [f"crowd-{body['rid']}-{i}" for i in range(_FILLERS)],
            "stream": True,
            **space,
        }
        if prioritised:
            fields["priority"] = 9
        self._connection = Connection(url, fields)
        self._last: dict[int, dict] = {}

    def step(self) -> None:
        """Wait until the server has said something more."""
        event = next(self._connection.events)
        self._last[event["index"]] = event

    def end(self) -> list[tuple[list[int], int, Given]]:
        """Wait for all; returns prompts, ``max_new_tokens`` and answers."""
        with contextlib.closing(self._connection):
            for event in self._connection.events:
                self._last[event["index"]] = event
        assert len(self._last) == len(self.prompts), "some of a batch were not answered"
        return [
            (prompt, _FILLER_TOKENS, given_of(self._last[i]))
            for i, prompt in enumerate(self.prompts)
        ]


def give_up(
    url: str, job: Job, prompt: list[int], run: str, prioritised: bool, log: Path
) -> Outcome:
    """Send ``job`` and abort it at the stage that it names, if that can be met.

    Args:
        log: of the server, which tells the stage.
    """
    body = body_of(job, prompt, run, prioritised)
    if job.abort.stage == "prefilling":
        return Outcome(prompt, _give_up_in_prefill(url, job, body, run, log))
    if job.abort.stage == "decoding":
        given = _send_and_abort(url, job, body, lambda victim: next(victim.events))
        return Outcome(prompt, given)
    crowd = Crowd(url, body, job.space, prioritised)
    crowd.step()
    # When the crowd has said something more, the server has the request.
    given = _send_and_abort(url, job, body, lambda _: crowd.step())
    return Outcome(prompt, given, others=tuple(crowd.end()))


def _give_up_in_prefill(url: str, job: Job, body: dict, run: str, log: Path) -> list[Given]:
    """Nothing tells a client that its prefill has begun: try with more patience, or less."""
    patience_s, given = 0.2, []
    for attempt in range(_ATTEMPTS):
        body["rid"] = rid_of(job, run, attempt)
        given += _send_and_abort(url, job, body, lambda victim, s=patience_s: victim.wait(s))
        stage = _stage_of(body["rid"], log)
        if stage == "prefilling":
            break
        patience_s *= 2 if stage == "queued" else 0.5
    return given


def _send_and_abort(
    url: str, job: Job, body: Mapping, until: Callable[[Connection], dict | None]
) -> list[Given]:
    """Send a request, abort it when ``until`` returns, and take what came of it."""
    victim = Connection(url, body)
    with contextlib.closing(victim):
        last = until(victim)
        if not job.abort.closes:
            post(f"{url}/abort_request", {"rid": body["rid"]}).raise_for_status()
            for event in victim.events:
                last = event
    return [] if last is None else [given_of(last)]


# ---- what the log of level debug tells ----

_IN_LOG = {
    "decoding": re.compile(r"Abort running request\. req\.rid='([^']+)'"),
    "queued": re.compile(r"Abort queued request\. req\.rid='([^']+)'"),
    # Said last, and of these it is said as well that they run.
    "prefilling": re.compile(r"Abort chunked prefill request\. req\.rid='([^']+)'"),
}
assert set(_IN_LOG) == set(STAGES)


def _stages(text: str) -> dict[str, str]:
    return {rid: stage for stage, line in _IN_LOG.items() for rid in line.findall(text)}


def aborted_stages(log: Path, run: str) -> Counter[str]:
    """Stages at which requests of ``run`` were aborted.

    A prefill of one pass counts as decoding, as its request has joined those that run.
    """
    found = _stages(log.read_text(errors="replace"))
    return Counter(stage for rid, stage in found.items() if rid.startswith(f"{run}-"))


def _stage_of(rid: str, log: Path) -> str | None:
    """Stage at which a request was aborted; None if it has ended before."""
    deadline, stage = time.monotonic() + _LOGGED_S, None
    while time.monotonic() < deadline:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - (1 << 18)))
            found = _stages(file.read().decode(errors="replace")).get(rid)
        if found is not None and found != stage:
            # Of a chunked prefill it is said first that it runs, a scheduling step earlier.
            stage, deadline = found, time.monotonic() + 0.5
        time.sleep(0.05)
    return stage

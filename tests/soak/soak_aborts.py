"""Requests that are given up: by a closed connection or by ``/abort_request``, at any stage."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from soak_client import DEADLINE_S, Given, Hung, Outcome, body_of, events_of, given_of, post
from soak_jobs import STAGES, Job

_FILLERS, _FILLER_TOKENS = 6, 24


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

    def wait(self, seconds: float) -> None:
        """Until the server says something, but no longer."""
        sock = self._connection.sock
        sock.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            sock.recv(1, socket.MSG_PEEK)
        sock.settimeout(DEADLINE_S)

    def events(self) -> Iterator[dict]:
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
        self._events = self._connection.events()
        self._last: dict[int, dict] = {}

    def step(self) -> None:
        """Wait until the server has said something more."""
        event = next(self._events)
        self._last[event["index"]] = event

    def end(self) -> list[tuple[list[int], int, Given]]:
        """Wait for all; returns prompts, ``max_new_tokens`` and answers."""
        with contextlib.closing(self._connection):
            for event in self._events:
                self._last[event["index"]] = event
        assert len(self._last) == len(self.prompts), "some of a batch were not answered"
        return [
            (prompt, _FILLER_TOKENS, given_of(self._last[i]))
            for i, prompt in enumerate(self.prompts)
        ]


def give_up(url: str, job: Job, prompt: list[int], run: str, prioritised: bool) -> Outcome:
    """Send ``job`` and abort it, near the stage that it names."""
    body = body_of(job, prompt, run, prioritised)
    if job.abort.stage != "queued":
        return Outcome(prompt, _send_and_abort(url, job, body))
    crowd = Crowd(url, body, job.space, prioritised)
    crowd.step()
    given = _send_and_abort(url, job, body, crowd)
    return Outcome(prompt, given, others=tuple(crowd.end()))


def _send_and_abort(url: str, job: Job, body: Mapping, crowd: Crowd | None = None) -> list[Given]:
    abort, last, victim = job.abort, None, Connection(url, body)
    with contextlib.closing(victim):
        events = victim.events()
        if abort.stage == "prefilling":
            victim.wait(abort.patience_s)
        elif abort.stage == "decoding":
            last = next(events)
        elif crowd is not None:
            crowd.step()  # by now the server has the request
        if not abort.closes:
            post(f"{url}/abort_request", {"rid": body["rid"]}).raise_for_status()
            for last in events:  # noqa: B007
                pass
    return [] if last is None else [given_of(last)]


_IN_LOG = {
    "queued": re.compile(r"Abort queued request\. req\.rid='([^']+)'"),
    "prefilling": re.compile(r"Abort chunked prefill request\. req\.rid='([^']+)'"),
    "decoding": re.compile(r"Abort running request\. req\.rid='([^']+)'"),
}
assert tuple(_IN_LOG) == STAGES


def aborted_stages(log: Path, run: str) -> Counter[str]:
    """Stages at which requests of ``run`` were aborted, as a log of level debug tells.

    A prefill of one pass counts as decoding, as its request has joined the running ones.
    """
    text, seen = log.read_text(errors="replace"), {}
    for stage in ("decoding", "queued", "prefilling"):  # a chunked one is also said to run
        for rid in _IN_LOG[stage].findall(text):
            if rid.startswith(f"{run}-"):
                seen[rid] = stage
    return Counter(seen.values())

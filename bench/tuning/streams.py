"""Request streams: what is sent to every server, one request after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_hybrid.sim.trace import Trace, TraceBuilder

PRINTABLE = (32, 127)
"""Token ids of made-up text: the small model has one token per byte."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        own: tokens of the prompt behind what it continues.
        output_len: tokens to generate.
        parent: number of the earlier request whose prompt and reply it continues, or -1.
        session: name of the conversation; None for a request of its own.
        part: which part of the workload it belongs to, for reports.
    """

    own: tuple[int, ...]
    output_len: int
    parent: int = -1
    session: str | None = None
    part: str = ""


@dataclass(frozen=True)
class Stream:
    """Requests in the order in which they are sent."""

    name: str
    requests: tuple[Request, ...]

    def __len__(self) -> int:
        return len(self.requests)

    def prompt(self, number: int, replies: Sequence[Sequence[int]]) -> list[int]:
        """Prompt of request ``number``, where ``replies`` are those of the earlier ones."""
        request = self.requests[number]
        if request.parent < 0:
            return list(request.own)
        history = self.prompt(request.parent, replies)
        return [*history, *replies[request.parent], *request.own]

    def prompt_tokens(self) -> list[int]:
        """Length of every prompt, which no reply changes."""
        lengths: list[int] = []
        for request in self.requests:
            before = 0
            if request.parent >= 0:
                before = lengths[request.parent] + self.requests[request.parent].output_len
            lengths.append(before + len(request.own))
        return lengths

    def trace(self, replies: Sequence[Sequence[int]] | None = None, seed: int = 0) -> Trace:
        """The stream for the simulator; without ``replies`` they are made up.

        A server holds no KV of the last generated token, so the trace does not have it.
        """
        if replies is None:
            rng = np.random.default_rng(seed)
            replies = [random_tokens(rng, request.output_len) for request in self.requests]
        builder = TraceBuilder(self.name)
        for number, request in enumerate(self.requests):
            prompt = self.prompt(number, replies)
            reply = replies[number][:-1]
            builder.add([*prompt, *reply], len(prompt), len(reply), session=request.session)
        return builder.build()


def random_tokens(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    """``count`` tokens of text that occurs nowhere else."""
    return tuple(rng.integers(*PRINTABLE, count).tolist())

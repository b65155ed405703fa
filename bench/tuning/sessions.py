"""Workloads of conversations, cut from recorded ones to what a small server can take.

Of every recorded message a fixed share of its bytes is kept, from its start, so that turns,
shared system prompts and relative lengths stay; replies are those of the model that is served.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from bench.tuning.streams import Request, Stream
from sglang_hybrid.model.tokenizer import TURN_END_ID, TURN_START_ID

sys.path.insert(0, str(Path(__file__).parents[1]))
from chat_traces import Conversation, Message, Turn, read_trace

HEADER = (TURN_START_ID, *b"assistant\n")


@dataclass(frozen=True)
class Sessions:
    """How recorded conversations become a stream.

    Attributes:
        file: name of the trace in the folder of ``--traces``.
        bytes_per_token: of a recorded message one byte in so many is kept.
        open_sessions: conversations at a time.
        think: median of the requests of others between two turns of one session.
        spread: sigma of that gap, which is log-normal.
        output_len: generated tokens of every request.
        max_prompt_tokens: a session ends before a longer prompt.
    """

    file: str
    bytes_per_token: int
    open_sessions: int = 24
    think: float = 20
    spread: float = 0.8
    output_len: int = 16
    max_prompt_tokens: int = 2500

    def stream(self, name: str, traces: Path, count: int, seed: int) -> Stream:
        """The first ``count`` requests of the sessions, in random order of sessions.

        A new session opens when one has ended; when all were opened, they come again.

        Raises:
            OSError: the trace cannot be read.
        """
        conversations = read_trace(traces / self.file).conversations
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(conversations)).tolist()
        waiting = cycle([conversations[i] for i in order])
        requests: list[Request] = []
        due: list[tuple[float, int, Iterator[Request], int]] = []
        opened = 0
        while len(requests) < count:
            while len(due) < self.open_sessions:
                turns = self._requests(next(waiting), f"{opened}")
                heapq.heappush(due, (len(requests) + self._gap(rng), opened, turns, -1))
                opened += 1
            _, number, turns, parent = heapq.heappop(due)
            request = next(turns, None)
            if request is not None:
                at = len(requests)
                requests.append(Request(request.own, request.output_len, parent, request.session))
                heapq.heappush(due, (at + self._gap(rng), number, turns, at))
        return Stream(name, tuple(requests))

    def _gap(self, rng: np.random.Generator) -> float:
        return math.exp(rng.normal(math.log(self.think), self.spread))

    def _requests(self, conversation: Conversation, session: str) -> Iterator[Request]:
        """The turns of one session; parents are not known yet."""
        length = 0
        for number, turn in enumerate(conversation.turns):
            own = self._rendered(turn, first=number == 0)
            length += len(own)
            if length > self.max_prompt_tokens:
                return
            yield Request(own, self.output_len, session=session)
            length += self.output_len

    def _rendered(self, turn: Turn, first: bool) -> tuple[int, ...]:
        """Messages as the chat template of the small model renders them."""
        tokens: list[int] = [] if first else [TURN_END_ID]
        for message in turn.messages:
            tokens += self._message(message)
        return (*tokens, *HEADER)

    def _message(self, message: Message) -> list[int]:
        text = message["content"].encode()
        kept = text[: max(1, len(text) // self.bytes_per_token)]
        return [TURN_START_ID, *message["role"].encode(), *b"\n", *kept, TURN_END_ID]


CHAT = Sessions("taubench_airline_gpt4o.jsonl.gz", bytes_per_token=8)
AGENT = Sessions("miniswe_gemini3_100.jsonl.gz", bytes_per_token=8)


def chat(traces: Path, count: int, seed: int) -> Stream:
    """Customer service with tools; all sessions share one system prompt."""
    return CHAT.stream("chat", traces, count, seed)


def agent(traces: Path, count: int, seed: int) -> Stream:
    """Coding agents: many turns, little in common."""
    return AGENT.stream("agent", traces, count, seed)

"""Send the conversations of a chat trace through `/v1/chat/completions`.

    python bench/replay_chat.py --trace FILE --url http://127.0.0.1:30000

One request per assistant message of the trace. The server must run with
`--enable-cache-report`. The exit status is 0 only if no request and no line of the
trace failed; 2 if nothing could be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from chat_stream import ReplayError, events, read_usage, text_of
from chat_traces import Conversation, Message, Trace, read_trace
from replay_report import RequestResult, print_report, summarize
from tqdm import tqdm

_FACTS = (
    "version",
    "device",
    "radix_cache_backend",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "max_mamba_cache_size",
    "max_total_num_tokens",
    "chunked_prefill_size",
    "page_size",
    "effective_max_running_requests_per_dp",
)
"""What a report keeps of `/server_info`."""

_TOKENS_PER_MESSAGE = 8
"""Allowance for what a chat template puts around a message."""


@dataclass
class Replay:
    """Sends conversations and collects what became of every request.

    Attributes:
        url: of the server, without a path.
        settings: the command line.
        model: name of the model in requests.
        results: one entry per request that was sent.
        left_out: requests not sent, by reason.
    """

    url: str
    settings: argparse.Namespace
    model: str
    session: aiohttp.ClientSession
    progress: tqdm
    results: list[RequestResult] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    async def run(self, conversations: list[Conversation]) -> None:
        """All conversations, at most `concurrency` at a time."""
        slots = asyncio.Semaphore(self.settings.concurrency)
        arrivals = arrival_times(len(conversations), self.settings)
        start = time.perf_counter()

        async def one(conversation: Conversation, arrival: float) -> None:
            await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
            async with slots:
                await self.converse(conversation)

        await asyncio.gather(*map(one, conversations, arrivals))

    async def converse(self, conversation: Conversation) -> None:
        """The turns of one conversation; a failed request ends it."""
        history: list[Message] = []
        known_tokens = 0
        for number, turn in enumerate(conversation.turns):
            rest = len(conversation.turns) - number
            history += turn.messages
            bound = known_tokens + sum(map(most_tokens, turn.messages))
            if bound > (self.settings.max_prompt_tokens or bound):
                self._leave_out("prompt longer than --max-prompt-tokens", rest)
                return
            if number and self.settings.think:
                await asyncio.sleep(self.settings.think)
            result, text = await self.send(conversation.name, number, history)
            self.results.append(result)
            self.progress.update()
            if result.error:
                self._leave_out("after an error in the same conversation", rest - 1)
                return
            own = {"role": "assistant", "content": text}
            reply = own if self.settings.history == "own" else turn.recorded_reply
            history.append(reply)
            known_tokens = result.prompt_tokens + most_tokens(reply)

    async def send(self, name: str, turn: int, history: list[Message]) -> tuple[RequestResult, str]:
        """One request; returns its result and the text of the reply."""
        body = {
            "model": self.model,
            "messages": history,
            "max_tokens": self.settings.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        result = RequestResult(name, turn)
        start = time.perf_counter()
        text = ""
        try:
            async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as reply:
                if reply.status != 200:
                    raise ReplayError(f"HTTP {reply.status}: {(await reply.text())[:200]}")
                async for event in events(reply):
                    if event.get("choices") and result.ttft_s is None:
                        result.ttft_s = time.perf_counter() - start
                    text += text_of(event)
                    read_usage(event, result)
        except (aiohttp.ClientError, TimeoutError, ReplayError, ValueError) as error:
            result.error = f"{type(error).__name__}: {error}"
        else:
            if result.ttft_s is None or not result.prompt_tokens:
                result.error = "the stream ended without a reply or without usage"
        result.duration_s = time.perf_counter() - start
        return result, text

    def _leave_out(self, reason: str, requests: int) -> None:
        if requests:
            self.left_out[reason] = self.left_out.get(reason, 0) + requests
            self.progress.update(requests)


def most_tokens(message: Message) -> int:
    """An upper bound of the tokens of a message: no tokenizer needs more than one per byte."""
    return len(json.dumps(message, ensure_ascii=False).encode()) + _TOKENS_PER_MESSAGE


def arrival_times(count: int, settings: argparse.Namespace) -> list[float]:
    """Seconds from the start at which each conversation may begin; zeros in a closed loop."""
    if settings.pace == "closed":
        return [0.0] * count
    gaps = random.Random(settings.seed)
    times, now = [], 0.0
    for _ in range(count):
        now += gaps.expovariate(settings.rate)
        times.append(now)
    return times


async def server_facts(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What `/server_info` says about cache and pools; empty for another kind of server.

    Raises:
        ReplayError: the server is unreachable, or hides how many tokens were cached.
    """
    try:
        async with session.get(f"{url}/server_info") as reply:
            if reply.status != 200:
                return {}
            info = await reply.json()
    except aiohttp.ClientError as error:
        raise ReplayError(f"{url} cannot be reached: {error}") from None
    if not info.get("enable_cache_report"):
        raise ReplayError("the server hides cached tokens; start it with --enable-cache-report")
    state = (info.get("internal_states") or [{}])[0]
    facts = {key: info.get(key, state.get(key)) for key in _FACTS}
    return {**facts, "hybrid_marconi": state.get("hybrid_marconi")}


async def _model_name(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/v1/models") as reply:
            return (await reply.json())["data"][0]["id"]
    except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
        raise ReplayError(f"{url}/v1/models does not name a model: {error}") from None


async def replay(settings: argparse.Namespace, trace: Trace) -> dict[str, Any]:
    """Send everything; returns the report that `--json` writes.

    Raises:
        ReplayError: nothing could be sent.
    """
    url = settings.url.rstrip("/")
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    limits = aiohttp.ClientTimeout(total=None, sock_read=settings.timeout)
    # A server closes idle connections after some seconds: one that is used again after a pause
    # may just be going, and the request with it. Nor may requests wait for a free connection.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(
        headers=headers, timeout=limits, connector=connector
    ) as session:
        before = await server_facts(session, url)
        model = settings.model or await _model_name(session, url)
        if settings.flush:
            async with session.post(f"{url}/flush_cache") as reply:
                if reply.status != 200:
                    raise ReplayError(f"the cache cannot be flushed: {await reply.text()}")
        total = sum(len(conversation.turns) for conversation in trace.conversations)
        start = time.perf_counter()
        with tqdm(total=total, unit="request", disable=settings.quiet) as progress:
            run = Replay(url, settings, model, session, progress)
            await run.run(trace.conversations)
        seconds = time.perf_counter() - start
        after = await server_facts(session, url)
    shown = {k: v for k, v in vars(settings).items() if k not in ("url", "json", "api_key")}
    shown["trace"] = settings.trace.name
    return {
        "settings": shown,
        "server": {**before, "hybrid_marconi": after.get("hybrid_marconi")},
        "summary": summarize(
            run.results, len(trace.conversations), seconds, run.left_out, trace.problems
        ),
        "requests": [asdict(result) for result in run.results],
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description="Replay a chat trace through /v1/chat/completions.")
    add = p.add_argument
    add("--trace", type=Path, required=True, help="messages JSONL or ShareGPT JSON, or .gz of it")
    add("--url", default="http://127.0.0.1:30000")
    add("--model", help="name of the model in requests (default: what /v1/models lists first)")
    add("--api-key", help="sent as a bearer token")
    add("--history", choices=("own", "recorded"), default="own", help="whose replies are history")
    add(
        "--tools",
        choices=("text", "native"),
        default="text",
        help="text: tool calls become content, tool results user messages; native: as recorded",
    )
    add("--conversations", type=int, metavar="N", help="only the first N (default: all)")
    add("--concurrency", type=int, default=4, help="conversations at a time")
    add(
        "--pace",
        choices=("closed", "poisson"),
        default="closed",
        help="closed: the next conversation starts when one ends; poisson: at random, --rate",
    )
    add("--rate", type=float, default=1.0, help="conversations per second of --pace poisson")
    add("--seed", type=int, default=0, help="of the arrival times")
    add("--think", type=float, default=0.0, help="seconds between a reply and the next turn")
    add("--max-tokens", type=int, default=64, help="of a reply")
    add(
        "--max-prompt-tokens",
        type=int,
        help="end a conversation before a prompt that may be longer (counting a token per byte)",
    )
    add("--timeout", type=float, default=600.0, help="seconds without an answer")
    add("--flush", action="store_true", help="flush the server's cache before")
    add("--json", type=Path, help="write settings, summary and every request to this file")
    add("--quiet", action="store_true", help="no progress bar")
    return p


def main(argv: list[str] | None = None) -> int:
    """Run the replay; returns the exit status."""
    settings = parser().parse_args(argv)
    try:
        trace = read_trace(settings.trace, settings.conversations, settings.tools)
        if not trace.conversations:
            raise ReplayError("; ".join(trace.problems) or f"{settings.trace} is empty")
        report = asyncio.run(replay(settings, trace))
    except (OSError, ReplayError) as error:
        print(f"replay_chat: {error}", file=sys.stderr)
        return 2
    if settings.json:
        settings.json.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)
    return 1 if report["summary"]["errors"] or trace.problems else 0


if __name__ == "__main__":
    sys.exit(main())

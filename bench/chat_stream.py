"""The stream of a chat completion."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from replay_report import RequestResult


class ReplayError(RuntimeError):
    """Nothing can be sent; the message is one line."""


async def events(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """JSON objects of a stream of server-sent events; raises ReplayError for an error in it."""
    async for line in reply.content:
        data = line.decode().strip().removeprefix("data:").strip()
        if not data or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ReplayError(str(event["error"])[:200])
        yield event


def text_of(event: dict[str, Any]) -> str:
    """The piece of the reply that an event carries."""
    choices = event.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def read_usage(event: dict[str, Any], result: RequestResult) -> None:
    """Token counts, which come with the last event."""
    usage = event.get("usage")
    if usage:
        # SGLang leaves the details out where nothing was cached.
        details = usage.get("prompt_tokens_details") or {}
        result.prompt_tokens = usage["prompt_tokens"]
        result.completion_tokens = usage.get("completion_tokens") or 0
        result.cached_tokens = details.get("cached_tokens") or 0

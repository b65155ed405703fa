"""Greedy answers of a running server, and how two of them differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

OUTPUT_TOKENS = 12
"""Tokens of every answer."""

_IDLE_WITHIN_S = 2.0
"""A server that is not idle by then has other traffic."""


class VerifyError(RuntimeError):
    """Nothing can be verified; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """What the server said: cached tokens, greedy tokens, their logprobs and margins.

    `margins[i]` is the distance in logprob between the two likeliest tokens.
    """

    cached: int
    tokens: list[int]
    logprobs: list[float]
    margins: list[float]


@dataclass(frozen=True)
class Difference:
    """How a hit differs from a cold request.

    Attributes:
        logprob: largest difference over the tokens that both chose.
        is_tie: tokens differ from some point on, where the margin is within tolerance.
        is_wrong: tokens differ where it is not, or a logprob is off by more.
    """

    logprob: float
    is_tie: bool
    is_wrong: bool


def compare(cold: Answer, hit: Answer, tolerance: float) -> Difference:
    """Compare two greedy answers to the same prompt, up to the first other token."""
    pairs = enumerate(zip(cold.tokens, hit.tokens, strict=False))
    shorter = min(len(cold.tokens), len(hit.tokens))
    same = next((i for i, (a, b) in pairs if a != b), shorter)
    logprobs = zip(cold.logprobs[:same], hit.logprobs[:same], strict=True)
    largest = max((abs(a - b) for a, b in logprobs), default=0.0)
    is_tie = same < shorter and cold.margins[same] <= tolerance
    is_complete = same == len(cold.tokens) == len(hit.tokens)
    return Difference(largest, is_tie, largest > tolerance or not (is_complete or is_tie))


class Client:
    """The endpoints of SGLang that verifying needs.

    Raises:
        VerifyError: from every method, if the server cannot be reached or refuses.
    """

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def _call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        try:
            return self._session.request(
                method, self._url + path, timeout=self._timeout_s, **kwargs
            )
        except requests.RequestException as error:
            reason = type(error).__name__
            raise VerifyError(f"{self._url} cannot be reached ({reason}); check --url") from None

    def info(self) -> dict[str, Any]:
        reply = self._call("GET", "/server_info")
        try:
            reply.raise_for_status()
            info: dict[str, Any] = reply.json()
        except (requests.HTTPError, ValueError) as error:
            raise VerifyError(f"{self._url}/server_info is not SGLang's: {error}") from None
        return info

    def flush(self) -> bool:
        """Empty the cache; False if the server is busy.

        SGLang refuses for a moment after a reply, while it finishes that batch.
        """
        deadline = time.monotonic() + _IDLE_WITHIN_S
        while self._call("POST", "/flush_cache").status_code != 200:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def generate(self, prompt: Sequence[int], salt: str) -> Answer:
        body = {
            "input_ids": list(prompt),
            "extra_key": salt,
            "return_logprob": True,
            "logprob_start_len": -1,  # logprobs of the prompt would disable hits
            "top_logprobs_num": 2,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
            },
        }
        reply = self._call("POST", "/generate", json=body)
        if reply.status_code != 200:
            raise VerifyError(f"/generate answers {reply.status_code}: {reply.text[:200]}")
        meta = reply.json()["meta_info"]
        chosen, tops = meta["output_token_logprobs"], meta["output_top_logprobs"]
        return Answer(
            cached=meta["cached_tokens"],
            tokens=[entry[1] for entry in chosen],
            logprobs=[entry[0] for entry in chosen],
            margins=[top[0][0] - top[1][0] for top in tops],
        )

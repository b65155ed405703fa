"""What a server without a cache answers, and how far another answer is from that."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from comparison import BOUNDS
from soak_client import Given, generate_reply
from workload import NOISE

from sglang_hybrid.model.tokenizer import BYTES


@dataclass(frozen=True)
class Expected:
    """An answer of the server without a cache.

    Attributes:
        margins: how far each token was ahead of the second best.
        input_logprobs: of the prompt from where they were asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    margins: list[float]
    input_logprobs: list[float | None]


@dataclass(frozen=True)
class Verdict:
    """How an answer compares.

    Attributes:
        wrong: what is wrong, None if nothing is.
        tie: margin of the first token that differs, where it is within the noise.
        apart: largest difference of a log-probability up to there.
    """

    wrong: str | None = None
    tie: float | None = None
    apart: float = 0.0


class Reference:
    """Asks the server without a cache, each request once.

    Args:
        url: of that server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: dict[str, Future[Expected]] = {}
        self._lock = threading.Lock()

    def expected(
        self, prompt: Sequence[int], length: int, sampling: dict, start: int | None
    ) -> Expected:
        """The answer to a request; see `Job` for what the arguments are."""
        body = {
            "input_ids": list(prompt),
            "sampling_params": {
                "max_new_tokens": length,
                "temperature": 0,
                "ignore_eos": True,
                **sampling,
            },
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        if start is not None:
            body["logprob_start_len"] = start
        key = json.dumps(body)
        with self._lock:
            known = self._known.get(key)
            is_new = known is None
            if is_new:
                known = self._known[key] = Future()
        if is_new:
            try:
                known.set_result(self._ask(body))
            except BaseException as error:
                known.set_exception(error)
        return known.result()

    def _ask(self, body: dict) -> Expected:
        reply = generate_reply(self._url, body)
        info = reply["meta_info"]
        return Expected(
            list(reply["output_ids"]),
            [entry[0] for entry in info["output_token_logprobs"]],
            [first[0] - second[0] for first, second in info["output_top_logprobs"] or ()],
            [entry[0] for entry in info.get("input_token_logprobs") or ()],
        )

    def verdict(
        self,
        given: Given,
        prompt: Sequence[int],
        length: int,
        sampling: dict,
        start: int | None = None,
        is_text: bool = False,
    ) -> Verdict:
        """Compare an answer.

        Args:
            is_text: what was given is text, without the token that ended it.
        """
        if not given.is_whole:
            if not given.tokens:
                return Verdict()
            length = len(given.tokens)
        expected = self.expected(prompt, length, sampling, start)
        return compare(given, expected, is_text)

    def forget(self) -> None:
        """Requests of another seed will not be asked again."""
        with self._lock:
            self._known.clear()


def compare(given: Given, expected: Expected, is_text: bool = False) -> Verdict:
    tokens = expected.tokens
    if is_text and tokens and tokens[-1] >= BYTES:
        tokens = tokens[:-1]
    same = next(
        (i for i, (a, b) in enumerate(zip(given.tokens, tokens, strict=False)) if a != b),
        min(len(given.tokens), len(tokens)),
    )
    apart = max(
        _apart(given.logprobs[:same], expected.logprobs[:same]),
        _apart(given.input_logprobs, expected.input_logprobs),
    )
    if apart > BOUNDS["float32"]:
        return Verdict(f"a log-probability is off by {apart:.3g}", apart=apart)
    if len(given.input_logprobs) not in (0, len(expected.input_logprobs)):
        return Verdict(
            f"{len(given.input_logprobs)} log-probabilities of the prompt, "
            f"not {len(expected.input_logprobs)}"
        )
    if given.tokens == tokens:
        return Verdict(apart=apart)
    margin = expected.margins[same] if same < len(expected.margins) else float("inf")
    if margin <= NOISE:
        return Verdict(tie=margin, apart=apart)
    return Verdict(
        f"differs at token {same}, where the margin is {margin:.3g}: "
        f"{given.tokens[same : same + 4]} is not {tokens[same : same + 4]}",
        apart=apart,
    )


def _apart(some: Sequence[float | None], others: Sequence[float | None]) -> float:
    pairs = zip(some, others, strict=False)
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)

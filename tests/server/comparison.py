"""What a prefix hit answers, against the same request on an empty cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BOUNDS = {"float32": 1e-3, "bfloat16": 0.25}
"""By dtype: how far a log-probability may be from that of a cold run; see docs/exactness.md."""

WITH_LOGPROBS = {"return_logprob": True, "top_logprobs_num": 2}
"""Fields of a request whose answer can be compared."""


@dataclass(frozen=True)
class Answer:
    """Greedy output of one request.

    Attributes:
        hit: tokens that came from the cache.
        tokens: what was generated.
        logprobs: of these tokens.
        margins: how far each was ahead of the second best.
    """

    hit: int
    tokens: list[int]
    logprobs: list[float]
    margins: list[float]


def answer_of(response: Mapping) -> Answer:
    """Of a response to a request that asked for the two best log-probabilities."""
    info = response["meta_info"]
    best = info["output_top_logprobs"] or []
    return Answer(
        info["cached_tokens"],
        response["output_ids"],
        [entry[0] for entry in info["output_token_logprobs"]],
        [first[0] - second[0] for first, second in best],
    )


def distance(warm: Answer, cold: Answer, tie: float = 0.0) -> float:
    """Largest difference of a log-probability, up to the first token that differs.

    Args:
        tie: tokens may differ where the cold run's best was ahead by no more than this.

    Returns:
        infinity if the tokens differ elsewhere, or the number of them does.
    """
    pairs = zip(warm.tokens, cold.tokens, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if same is None:
        if len(warm.tokens) != len(cold.tokens):
            return float("inf")
        same = len(cold.tokens)
    elif cold.margins[same] > tie:
        return float("inf")
    pairs = zip(warm.logprobs[:same], cold.logprobs[:same], strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)


@dataclass
class Comparison:
    """Requests served one after another, and then each of them on an empty cache.

    Args:
        server: a `CpuServer`.
        dtype: of the model on that server.
        options: further fields of every request.
    """

    server: object
    dtype: str = "float32"
    options: Mapping = field(default_factory=dict)
    _served: list[tuple[list[int], int, dict, Answer]] = field(default_factory=list)

    def ask(self, prompt: Sequence[int], length: int, **sampling) -> Answer:
        """Serve a request with the cache as it is, and remember the answer."""
        answer = self._ask(prompt, length, sampling)
        self._served.append((list(prompt), length, sampling, answer))
        return answer

    @property
    def answers(self) -> list[Answer]:
        return [answer for *_, answer in self._served]

    def add(self, prompt: Sequence[int], length: int, answer: Answer, **sampling) -> None:
        """Remember an answer that was served otherwise."""
        self._served.append((list(prompt), length, sampling, answer))

    def _ask(self, prompt: Sequence[int], length: int, sampling: dict) -> Answer:
        options = {**WITH_LOGPROBS, **self.options}
        return answer_of(self.server.generate(list(prompt), length, sampling, **options))

    def distances(self) -> list[float]:
        """Of each answer from the cold one; empties the cache."""
        tie = 0.0 if self.dtype == "float32" else BOUNDS[self.dtype]
        found = []
        for prompt, length, sampling, answer in self._served:
            self.server.flush()
            cold = self._ask(prompt, length, sampling)
            assert cold.hit == 0
            found.append(distance(answer, cold, tie))
        return found

    def check(self) -> None:
        """Every answer is that of an empty cache, within the bound of the dtype."""
        found, bound = self.distances(), BOUNDS[self.dtype]
        served = [(len(prompt), answer.hit) for prompt, _, _, answer in self._served]
        wrong = [
            f"prompt of {length} with a hit of {hit}: {apart:.2g}"
            for (length, hit), apart in zip(served, found, strict=True)
            if not apart <= bound
        ]
        assert not wrong, wrong

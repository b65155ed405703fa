"""The traffic of a soak: requests derived from one seed, built on those before them.

A job says how its prompt is made from what an earlier job was asked and answered. Greedy
answers follow from the model, so that a seed gives the same requests on every server, but
for what an answer that differs within the noise changes in those built on it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from workload import tokens

STAGES = ("queued", "prefilling", "decoding")
SHORT = 120
"""Tokens of own text of an ordinary prompt, at most."""


@dataclass(frozen=True)
class Fork:
    """Where a prompt leaves the sequence of an earlier job.

    Attributes:
        base: number of that job.
        part: "prompt", "answer" or "all": what the kept part ends in, or all of the
            sequence, as a conversation does that goes on.
        at: from 0 to 1, how far into that part.
    """

    base: int
    part: str
    at: float = 1.0

    def of(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """The kept tokens of a sequence."""
        if self.part == "prompt":
            return list(prompt[: max(1, round(self.at * len(prompt)))])
        if self.part == "answer":
            return [*prompt, *answer[: round(self.at * len(answer))]]
        return [*prompt, *answer]


@dataclass(frozen=True)
class Abort:
    """A request that its client gives up.

    Attributes:
        stage: where it is aimed at; where it was hit, the server's log tells.
        closes: by closing the connection instead of ``/abort_request``.
    """

    stage: str
    closes: bool


@dataclass(frozen=True)
class Job:
    """One request, or several that are sent as one.

    Attributes:
        kind: "generate", "long" (up to the longest), "too_long", "chat", "batch" (identical
            prompts in one request) or "fan" (see `soak_client.fan`).
        fork: None for a prompt of its own.
        own: tokens behind the fork; of chat the bytes of the user's message.
        length: ``max_new_tokens``.
        copies: answers (``n``) or identical prompts of a batch.
        sampling: further sampling parameters.
        logprob_start: from 0 to 1, where in the prompt log-probabilities begin; None for
            those of the answer alone.
        logprobs: whether log-probabilities are asked for.
        space: fields of the request that name its namespace.
        system: of chat, the system message that begins a conversation.
    """

    number: int
    kind: str
    fork: Fork | None
    own: tuple[int, ...]
    length: int
    copies: int = 1
    stream: bool = False
    sampling: dict = field(default_factory=dict)
    logprobs: bool = False
    logprob_start: float | None = None
    space: dict = field(default_factory=dict)
    priority: int = 0
    system: str | None = None
    abort: Abort | None = None


ALONE = 8
"""Jobs at the beginning, each for a server without other traffic: a fan, a prompt that is too
long, and an abort at each stage in each way, so that none of these is left to chance."""

ROOM = 5
"""Tokens of an answer for which the longest prompt leaves room; SGLang cuts longer ones."""

_DRAWN = 3000

SPACES = ({}, {}, {}, {}, {"extra_key": "a"}, {"cache_salt": "s"}, {"extra_key": "as"})
"""Mostly the common one; the last three share no prefix with it or with each other."""

_KINDS = {
    "generate": 50,
    "turn": 12,
    "chat": 12,
    "n": 5,
    "batch": 5,
    "short": 6,
    "long": 2,
    "too_long": 1,
    "abort": 7,
}


class Traffic:
    """Jobs from a seed.

    Args:
        longest: tokens of the longest prompt that the pool admits.
        refused: tokens of the shortest prompt that is refused. Only the lengths of a few
            prompts depend on these two.
    """

    def __init__(self, seed: int, longest: int, refused: int) -> None:
        self._rng = random.Random(seed)
        self._longest = longest
        self._refused = refused
        self._jobs: list[Job] = []
        self._families = [
            tuple(tokens(length, 1000 * seed + i))
            for i, length in enumerate((17, 33, 64, 70, 127, 129, 200, 256, 333))
        ]
        self._aborts = 0

    def jobs(self, count: int) -> list[Job]:
        """The first ``count`` jobs, the first `ALONE` of which want the server for themselves."""
        kinds, weights = zip(*_KINDS.items(), strict=True)
        for make in (self._fan, self._too_long, *[self._abort] * (ALONE - 2)):
            if len(self._jobs) < ALONE:
                self._jobs.append(make())
        while len(self._jobs) < count:
            kind = self._rng.choices(kinds, weights)[0]
            self._jobs.append(getattr(self, f"_{kind}")())
        return self._jobs

    # ---- parts of a request ----

    def _text(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(32, 127) for _ in range(self._rng.randrange(low, high)))

    def _earlier(self, *kinds: str) -> Job | None:
        # Not the last few, which may not have been answered yet; mostly what may be cached.
        some = self._jobs[:-6][-12 if self._rng.random() < 0.8 else -60 :]
        settled = [job for job in some if job.kind in kinds and job.abort is None]
        return self._rng.choice(settled) if settled else None

    def _fork(self) -> tuple[Fork | None, dict]:
        """A fork inside an earlier sequence, mostly in its namespace."""
        base = self._earlier("generate", "batch")
        if base is None:
            return None, self._rng.choice(SPACES)
        part = self._rng.choice(("prompt", "prompt", "answer"))
        space = base.space if self._rng.random() < 0.85 else self._rng.choice(SPACES)
        return Fork(base.number, part, self._rng.random()), space

    def _options(self) -> dict:
        rng, options = self._rng, {}
        if rng.random() < 0.6:
            options["logprobs"] = True
            if rng.random() < 0.25:
                options["logprob_start"] = rng.random()
        stop = rng.random()
        if stop < 0.08:
            options["sampling"] = {"stop": [chr(rng.randrange(61, 91)), "ab"]}
        elif stop < 0.2:
            ids = rng.sample(range(32, 127), rng.choice((3, 12)))
            options["sampling"] = {"stop_token_ids": ids, "ignore_eos": False}
        if rng.random() < 0.3:
            options["stream"] = True
        return {**options, "priority": rng.randrange(3)}

    def _length(self) -> int:
        return self._rng.choice((1, 1, 2, 3, 5, 8, 13, 21))

    def _family(self) -> tuple[int, ...]:
        """A prefix that many prompts begin with; mostly one of those in fashion."""
        if self._rng.random() < 0.2:
            return self._rng.choice(self._families)
        return self._families[(len(self._jobs) // 20 + self._rng.randrange(2)) % 9]

    # ---- kinds ----

    def _job(self, kind: str, fork: Fork | None, own: tuple[int, ...], **fields) -> Job:
        return Job(
            len(self._jobs),
            kind,
            fork,
            own,
            **{"length": self._length(), **self._options(), **fields},
        )

    def _generate(self) -> Job:
        if self._rng.random() < 0.45:
            own = (*self._family(), *self._text(0, SHORT))
            return self._job("generate", None, own, space=self._rng.choice(SPACES))
        fork, space = self._fork()
        # Now and then nothing of its own: the same prompt again, or a part of it.
        own = self._text(1 if fork is None else 0, self._rng.choice((2, 9, SHORT)))
        return self._job("generate", fork, own, space=space)

    def _turn(self) -> Job:
        base = self._earlier("generate")
        if base is None:
            return self._generate()
        return self._job("generate", Fork(base.number, "all"), self._text(1, 40), space=base.space)

    def _chat(self) -> Job:
        base = self._earlier("chat") if self._rng.random() < 0.7 else None
        system = None
        if base is None:
            words = ("You answer briefly. ", "Rules: be kind, be exact. ")
            system = self._rng.choice(words) * self._rng.choice((1, 4))
        message = tuple(self._rng.randrange(97, 123) for _ in range(self._rng.randrange(1, 60)))
        return Job(
            len(self._jobs),
            "chat",
            None if base is None else Fork(base.number, "all"),
            message,
            self._length(),
            stream=self._rng.random() < 0.3,
            space=self._rng.choice(SPACES[3:5]) if base is None else base.space,
            priority=self._rng.randrange(3),
            system=system,
        )

    def _n(self) -> Job:
        fork, space = self._fork()
        return self._job(
            "generate", fork, self._text(1, 60), space=space, copies=self._rng.choice((2, 3)),
            stream=False,
        )  # fmt: skip

    def _batch(self) -> Job:
        fork, space = self._fork()
        return self._job(
            "batch", fork, self._text(1, 60), space=space, copies=self._rng.choice((2, 3, 4)),
            stream=False,
        )  # fmt: skip

    def _fan(self) -> Job:
        return Job(len(self._jobs), "fan", None, self._text(108, 109), length=2, copies=6)

    def _short(self) -> Job:
        own = tuple(self._rng.choices(range(40, 43), k=self._rng.randrange(1, 4)))
        return self._job("generate", None, own)

    def _long(self) -> Job:
        fork, space = self._fork()
        is_longest = self._rng.random() < 0.5
        length, text = self._rng.randrange(400, 1800), self._text(_DRAWN, _DRAWN + 1)
        answer = self._rng.randrange(1, ROOM + 1)
        return self._job(
            "long",
            None if is_longest else fork,
            text[: self._longest if is_longest else length],
            length=answer,
            space=space,
            logprob_start=None,
        )

    def _too_long(self) -> Job:
        beyond, text = self._rng.choice((0, 1, 500)), self._text(_DRAWN, _DRAWN + 1)
        own = text[: self._refused + beyond]
        return self._job("too_long", None, own, stream=False, logprob_start=None, sampling={})

    def _abort(self) -> Job:
        """Each stage in turn, each way in turn."""
        number, self._aborts = self._aborts, self._aborts + 1
        stage, closes = STAGES[number % 3], number // 3 % 2 == 0
        fork, space = self._fork()
        if stage == "prefilling":
            fork, own = None, self._text(700, 1200)
        else:
            own = self._text(1, SHORT)
        abort = Abort(stage, closes)
        return Job(
            len(self._jobs), "generate", fork, own, length=40, stream=True, space=space, abort=abort
        )

"""Runs the traffic of one seed against a server and compares every answer."""

from __future__ import annotations

import dataclasses
import threading
import traceback
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from soak_aborts import aborted_stages, give_up
from soak_client import Outcome, body_of, chat, fan, generate, start_of
from soak_jobs import ALONE, Job, Traffic
from soak_reference import Reference, Verdict
from soak_servers import Soaked

AT_ONCE = 8
_CHECKS_AT_ONCE = 3
_MOST_WRONG = 5
"""Failures after which no more is sent."""


@dataclass
class Round:
    """What came of the traffic of one seed.

    Attributes:
        requests: sent, the parts of a batch apart.
        tokens: of prompts and answers compared.
        ties: margins of first tokens that differ within the noise.
        apart: largest difference of a log-probability.
        retracted: answers of requests that were retracted.
        aborts: requests aborted, by stage.
        counters: what the server counted meanwhile.
        wrong: a line for each failure, with the request.
    """

    seed: int
    requests: int = 0
    finished: int = 0
    refused: int = 0
    tokens: int = 0
    ties: list[float] = field(default_factory=list)
    apart: float = 0.0
    retracted: int = 0
    aborts: Counter[str] = field(default_factory=Counter)
    counters: dict = field(default_factory=dict)
    rss_bytes: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.counters["hit_tokens"] / max(1, self.counters["prompt_tokens"])


class Load:
    """One round: `AT_ONCE` requests at a time.

    Args:
        name: of the round; names of requests begin with it.
    """

    def __init__(self, soaked: Soaked, reference: Reference, seed: int, name: str) -> None:
        self._soaked = soaked
        self._reference = reference
        self._name = name
        self._sequences: dict[int, Future[Outcome]] = {}
        self._lock = threading.Lock()
        self.round = Round(seed)

    def run(self, count: int) -> Round:
        """Send ``count`` jobs; returns when all are answered and compared."""
        soaked, traffic = (
            self._soaked,
            Traffic(self.round.seed, self._soaked.longest, self._soaked.refused),
        )
        before = soaked.counters()
        jobs = traffic.jobs(count)
        self._sequences = {job.number: Future() for job in jobs}
        with (
            ThreadPoolExecutor(_CHECKS_AT_ONCE) as self._checks,
            ThreadPoolExecutor(AT_ONCE) as senders,
        ):
            for job in jobs[:ALONE]:
                self._serve(job)
            wait([senders.submit(self._serve, job) for job in jobs[ALONE:]])
        soaked.check_log()  # a server that has ended could not tell more
        after = soaked.counters()
        self.round.counters = {name: after[name] - before[name] for name in after}
        self.round.aborts = aborted_stages(soaked.log, self._name)
        self.round.rss_bytes = soaked.rss_bytes()
        return self.round

    # ---- one job ----

    def _serve(self, job: Job) -> None:
        outcome, prompt = Outcome([], []), None
        try:
            base = None if job.fork is None else self._sequences[job.fork.base].result()
            prompt = self._prompt(job, base)
            if len(self.round.wrong) < _MOST_WRONG:
                outcome = Outcome(prompt, [])
                outcome = self._send(job, prompt, base)
                self._count(job, outcome)
        except Exception as error:
            self._fail(job, prompt or [], f"{type(error).__name__}: {error}", error)
        finally:
            # Those built on it get what there is, and fail for themselves.
            self._sequences[job.number].set_result(outcome)

    def _prompt(self, job: Job, base: Outcome | None) -> list[int]:
        if base is None or job.kind == "chat":
            return list(job.own)
        prompt = [*job.fork.of(*base.sequence), *job.own]
        return (prompt or [33])[: self._soaked.longest]

    def _send(self, job: Job, prompt: list[int], base: Outcome | None) -> Outcome:
        url, prioritised = self._soaked.url, self._soaked.setup.prioritised
        if job.kind == "chat":
            before = () if base is None else base.messages
            return chat(url, job, before, self._name, prioritised)
        if job.abort is not None:
            return give_up(url, job, prompt, self._name, prioritised, self._soaked.log)
        if job.kind == "fan":
            return fan(url, job, self._name, prioritised)
        given, refusal = generate(url, body_of(job, prompt, self._name, prioritised))
        return Outcome(prompt, given, refusal)

    # ---- what came of it ----

    def _count(self, job: Job, outcome: Outcome) -> None:
        prompt = outcome.prompt
        with self._lock:
            self.round.requests += job.copies + len(outcome.others)
            self.round.refused += outcome.refusal is not None
        if job.kind == "too_long" or outcome.refusal is not None:
            self._check_refusal(job, outcome)
            return
        if job.abort is None and job.kind != "fan":
            assert len(outcome.given) == job.copies, f"{len(outcome.given)} answers"
            assert all(given.is_whole for given in outcome.given), "aborted by the server"
            if job.kind != "chat" and job.logprobs:
                assert all(len(g.logprobs) == len(g.tokens) for g in outcome.given), "logprobs"
        start = start_of(job, prompt)
        for given in outcome.given:
            arguments = (given, prompt, job.length, job.sampling, start)
            if job.kind == "chat":
                arguments = (given, prompt, job.length, {"ignore_eos": False}, None, True)
            self._checks.submit(self._check, job, *arguments)
        for other, length, given in outcome.others:
            self._checks.submit(self._check, job, given, other, length, {})

    def _check_refusal(self, job: Job, outcome: Outcome) -> None:
        assert job.kind == "too_long", f"refused: {outcome.refusal}"
        assert outcome.refusal is not None, "a prompt that is too long was served"
        named = f"({len(outcome.prompt)} tokens)", f"({self._soaked.refused} tokens)"
        assert all(each in outcome.refusal for each in named), outcome.refusal

    def _check(self, job: Job, given, prompt, *arguments) -> None:
        try:
            verdict = self._reference.verdict(given, prompt, *arguments)
        except Exception as error:
            self._fail(job, prompt, f"reference: {type(error).__name__}: {error}", error)
            return
        self._note(job, given, prompt, verdict)

    def _note(self, job: Job, given, prompt, verdict: Verdict) -> None:
        if verdict.wrong is not None:
            hit = f"hit {given.hit}, retracted {given.retractions} times"
            self._fail(job, prompt, f"{verdict.wrong} ({hit})")
        with self._lock:
            result = self.round
            result.finished += given.is_whole
            result.tokens += len(prompt) + len(given.tokens)
            result.retracted += given.retractions > 0
            result.apart = max(result.apart, verdict.apart)
            if verdict.tie is not None:
                result.ties.append(verdict.tie)

    def _fail(self, job: Job, prompt, message: str, error: Exception | None = None) -> None:
        where = "" if error is None else "".join(traceback.format_tb(error.__traceback__)[-1:])
        asked = dataclasses.replace(job, own=())
        with self._lock:
            self.round.wrong.append(
                f"seed {self.round.seed}, server {self._soaked.setup.name}: {message}\n"
                f"    {asked}\n    prompt of {len(prompt)}: {list(prompt)}\n{where}"
            )

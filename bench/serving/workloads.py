"""The workloads: their sizes, the files they need, and the commands that send them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from bench.serving import datasets
from bench.serving.datasets import Branching, Cut, Mooncake
from bench.tuning.sessions import AGENT, CHAT

POOLS = ("pressure", "ample")
"""Pools that are too small for the workload, and such that hold all of it."""

SIZES = ("small", "full")
"""For the small model on a CPU, and for served models on GPUs."""

REPLAY = Path(__file__).parents[1] / "replay_chat.py"
MOONCAKE_TRACE = "mooncake_conversation.jsonl"
_OPEN_SESSIONS = 256


@dataclass(frozen=True)
class Load:
    """How requests arrive: at a rate, or so many at a time.

    Attributes:
        rate: arrivals per second, of requests or conversations; None: closed loop.
        closed: at a time, in a closed loop.
    """

    rate: float | None = None
    closed: int = 1


@dataclass(frozen=True)
class Workload:
    """What is sent. Its fields can be set with ``--set WORKLOAD.FIELD=VALUE``.

    Attributes:
        output: tokens to generate per request.
        source: trace that it is made from; None if it is generated.
    """

    name: ClassVar[str]
    driver: ClassVar[str] = "bench_serving"
    pools: ClassVar[str] = "pressure"
    trace: ClassVar[str | None] = None
    needs_trace: ClassVar[bool] = False

    output: int
    source: Path | None = None

    def settings(self) -> dict[str, Any]:
        """What makes two workloads of one name the same."""
        values = asdict(self)
        values["source"] = self.source and self.source.name
        return values

    def arrivals(self) -> int:
        """Requests or conversations of a run, whatever its rate counts."""
        raise NotImplementedError

    def prepare(self, path: Path, seed: int) -> None:
        """Write the file of one seed.

        Raises:
            OSError, ValueError: the source cannot be used.
        """

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        """Of the driver, without the interpreter."""
        raise NotImplementedError

    def _bench_serving(
        self,
        url: str,
        seed: int,
        load: Load,
        out: Path,
        dataset: str,
        path: Path | None = None,
        backend: str = "sglang",
    ) -> list[str]:
        command = ["-m", "sglang.bench_serving", "--base-url", url, "--seed", str(seed)]
        command += ["--backend", backend, "--dataset-name", dataset]
        command += [] if path is None else ["--dataset-path", str(path)]
        command += ["--num-prompts", str(self.arrivals())]
        command += ["--warmup-requests", "0", "--disable-tqdm", "--cache-report"]
        command += ["--output-details", "--output-file", str(out)]
        if load.rate is None:
            return [*command, "--request-rate", "inf", "--max-concurrency", str(load.closed)]
        return [*command, "--request-rate", f"{load.rate:.6g}"]


@dataclass(frozen=True)
class Prefixes(Workload):
    """SGLang's generated-shared-prefix: groups of prompts behind one prefix each.

    Attributes:
        groups, prompts: requests are their product, in random order.
        prefix, question: tokens of a prefix and behind it, at most.
        shortest: lengths are drawn from this share of the longest to the longest.
    """

    name: ClassVar[str] = "prefixes"

    output: int = 8
    groups: int = 12
    prompts: int = 14
    prefix: int = 1600
    question: int = 80
    shortest: float = 0.5

    FULL: ClassVar[Mapping[str, Any]] = {
        "output": 64,
        "groups": 64,
        "prompts": 16,
        "prefix": 8192,
        "question": 256,
    }

    def arrivals(self) -> int:
        return self.groups * self.prompts

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        command = self._bench_serving(url, seed, load, out, "generated-shared-prefix")
        command += ["--tokenize-prompt"]
        for name, value in {
            "num-groups": self.groups,
            "prompts-per-group": self.prompts,
            "system-prompt-len": self.prefix,
            "question-len": self.question,
            "output-len": self.output,
            "range-ratio": self.shortest,
        }.items():
            command += [f"--gsp-{name}", str(value)]
        return command


@dataclass(frozen=True)
class Ample(Prefixes):
    """The same, with pools that hold everything."""

    name: ClassVar[str] = "ample"
    pools: ClassVar[str] = "ample"

    FULL: ClassVar[Mapping[str, Any]] = {**Prefixes.FULL, "prompts": 4}


@dataclass(frozen=True)
class _Replayed(Workload):
    """Conversations through `bench/replay_chat.py`; the model's own replies are history."""

    driver: ClassVar[str] = "replay_chat"

    output: int = 16
    think: float = 5.0

    def prepare(self, path: Path, seed: int) -> None:
        datasets.write_sessions(path, self.sessions(seed))

    def sessions(self, seed: int) -> list[tuple[str, list[list[datasets.Message]]]]:
        raise NotImplementedError

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        command = [str(REPLAY), "--trace", str(data), "--url", url, "--history", "own"]
        command += ["--max-tokens", str(self.output), "--seed", str(seed)]
        command += ["--json", str(out), "--quiet"]
        if load.rate is None:
            return [*command, "--pace", "closed", "--concurrency", str(load.closed)]
        command += ["--pace", "poisson", "--rate", f"{load.rate:.6g}"]
        return [*command, "--think", str(self.think), "--concurrency", str(_OPEN_SESSIONS)]


@dataclass(frozen=True)
class BranchingAgents(_Replayed):
    """Generated agent sessions that branch: `datasets.Branching`."""

    name: ClassVar[str] = "branching"

    tasks: int = 10
    attempts: int = 4
    turns: tuple[int, int] = (4, 7)
    parts: tuple[int, int] = (1, 3)
    system: int = 700
    statement: tuple[int, int] = (500, 1200)
    answer: tuple[int, int] = (60, 240)

    FULL: ClassVar[Mapping[str, Any]] = {
        "output": 256,
        "tasks": 48,
        "attempts": 4,
        "turns": (8, 16),
        "parts": (1, 6),
        "system": 16_000,
        "statement": (4_000, 40_000),
        "answer": (1_000, 12_000),
    }

    def arrivals(self) -> int:
        return self.tasks * self.attempts

    def sessions(self, seed: int) -> list[tuple[str, list[list[datasets.Message]]]]:
        own = {field.name for field in fields(Branching)}
        return Branching(**{k: v for k, v in vars(self).items() if k in own}).sessions(seed)


@dataclass(frozen=True)
class _Recorded(_Replayed):
    """Conversations of a trace, cut to fit.

    Attributes:
        conversations: of a run.
        keep, max_turns, max_bytes: see `datasets.Cut`.
        bytes_per_token: of replies, at most; for what is left of ``max_bytes``.
    """

    needs_trace: ClassVar[bool] = True

    conversations: int = 40
    keep: int = 8
    max_turns: int = 8
    max_bytes: int = 2400
    bytes_per_token: int = 1

    FULL: ClassVar[Mapping[str, Any]] = {
        "output": 256,
        "conversations": 100,
        "keep": 1,
        "max_turns": 40,
        "max_bytes": 120_000,
        "bytes_per_token": 5,
    }

    def arrivals(self) -> int:
        return self.conversations

    def sessions(self, seed: int) -> list[tuple[str, list[list[datasets.Message]]]]:
        assert self.source is not None
        reply = self.output * self.bytes_per_token
        cut = Cut(self.keep, self.max_turns, self.max_bytes, reply)
        return datasets.recorded_sessions(self.source, cut, self.conversations, seed)


@dataclass(frozen=True)
class Agents(_Recorded):
    """Sessions of mini-swe-agent: many turns, little in common."""

    name: ClassVar[str] = "agent"
    trace: ClassVar[str | None] = AGENT.file


@dataclass(frozen=True)
class Chats(_Recorded):
    """Conversations of tau-bench, which share one long system prompt."""

    name: ClassVar[str] = "chat"
    trace: ClassVar[str | None] = CHAT.file


@dataclass(frozen=True)
class AgenticTrace(_Recorded):
    """SGLang's agentic-trace: the sessions of `Agents`, or without a trace generated ones."""

    name: ClassVar[str] = "agentic-trace"
    driver: ClassVar[str] = "bench_serving"
    trace: ClassVar[str | None] = AGENT.file
    needs_trace: ClassVar[bool] = False

    generated: Mapping[str, Any] = field(default_factory=dict)

    def arrivals(self) -> int:
        return self.conversations if self.source else self._generated().arrivals()

    def prepare(self, path: Path, seed: int) -> None:
        sessions = self.sessions(seed) if self.source else self._generated().sessions(seed)
        name = self.source.name if self.source else "generated"
        datasets.write_agentic_trace(path, sessions, name)

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        command = self._bench_serving(
            url, seed, load, out, "agentic-trace", data, backend="sglang-oai-chat"
        )
        return [*command, "--sharegpt-output-len", str(self.output)]

    def _generated(self) -> BranchingAgents:
        return BranchingAgents(**self.generated)


@dataclass(frozen=True)
class ShortChats(Workload):
    """Short independent chats: generated, or those of a ShareGPT file (``--sharegpt``).

    Attributes:
        requests: of a run.
        length: bytes of a generated prompt, log-uniform between the two.
    """

    name: ClassVar[str] = "short-chats"

    output: int = 16
    requests: int = 150
    length: tuple[int, int] = (40, 800)

    FULL: ClassVar[Mapping[str, Any]] = {"output": 200, "requests": 1000, "length": (100, 8000)}

    def arrivals(self) -> int:
        return self.requests

    def prepare(self, path: Path, seed: int) -> None:
        if self.source is None:
            datasets.write_short_chats(path, self.requests, self.length, seed)

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        command = self._bench_serving(url, seed, load, out, "sharegpt", self.source or data)
        return [*command, "--sharegpt-output-len", str(self.output)]


@dataclass(frozen=True)
class MooncakeTrace(Workload):
    """A segment of a mooncake trace. Its times are stretched to reach the rate.

    Attributes:
        requests: of a run.
        every, max_blocks: see `datasets.Mooncake`.
        max_output: ``output``.
    """

    name: ClassVar[str] = "mooncake"
    trace: ClassVar[str | None] = MOONCAKE_TRACE
    needs_trace: ClassVar[bool] = True

    output: int = 16
    requests: int = 150
    every: int = 8
    max_blocks: int = 5

    FULL: ClassVar[Mapping[str, Any]] = {
        "output": 512,
        "requests": 1000,
        "every": 1,
        "max_blocks": 128,
    }

    def arrivals(self) -> int:
        return self.requests

    def prepare(self, path: Path, seed: int) -> None:
        assert self.source is not None
        cut = Mooncake(self.every, self.max_blocks, self.output)
        records = cut.segment(datasets.read_mooncake(self.source), self.requests, seed)
        datasets.write_lines(path, records)

    def command(self, url: str, data: Path, seed: int, load: Load, out: Path) -> list[str]:
        slowdown = 0.0  # all arrive at once, and wait for their turn
        if load.rate is not None:
            lasts = datasets.trace_seconds(datasets.read_mooncake(data))
            slowdown = self.requests / load.rate / lasts
        command = self._bench_serving(url, seed, load, out, "mooncake", data)
        return [*command, "--mooncake-slowdown-factor", f"{slowdown:.6g}"]


def python(command: Sequence[str]) -> list[str]:
    """The driver's command with its interpreter."""
    return [sys.executable, *command]

"""`hybrid-marconi verify`: is the cache of a running server right?

Prompts of random token ids, under a salt of their own, show which tokens are
hit; the same prompts under another salt show what a cold request answers. So it
works on a server that is warm, and can be repeated.
"""

from __future__ import annotations

import argparse
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_hybrid.cli.answers import OUTPUT_TOKENS, Client, Difference, VerifyError, compare
from sglang_hybrid.cli.expectations import (
    ExpectedCache,
    ServerTraits,
    UnsupportedServer,
    cache_status,
    prompt_limit,
)

DEFAULT_TOLERANCE = 0.1
"""In natural log: bfloat16 noise between prefills of different length stays below it."""

_TOKEN_IDS = range(33, 127)
"""Ordinary tokens in byte-level vocabularies and in all larger ones."""

_SHARED_TOKENS = (65, 250, 1000)
_PIPED_WIDTH = 160
_PRESSURE = ("declined_checkpoints", "skipped_checkpoints", "evicted_states")


@dataclass(frozen=True)
class Row:
    """One request of a case; `expected` is None where any number of tokens is right."""

    case: str
    prompt_tokens: int
    expected: int | None
    got: int
    is_excused: bool
    difference: Difference | None

    @property
    def ok(self) -> bool:
        right = self.expected in (None, self.got) or self.is_excused
        return right and not (self.difference and self.difference.is_wrong)


@dataclass
class Verifier:
    """Sends the cases and collects a row per request.

    Attributes:
        traits: None to check against any cache, where every hit is right.
        longest: tokens of the longest prompt to send.
    """

    client: Client
    traits: ServerTraits | None
    tolerance: float
    longest: int
    salt: str = field(default_factory=lambda: f"verify-{uuid.uuid4().hex}")
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _cold_salts: int = 0

    def run(self) -> None:
        self._random = random.Random(self.salt)
        self._pressure = self._pressure_now()
        for shared in self._shared_lengths():
            prefix = self._tokens(shared)
            prompts = (prefix + tail for tail in self._tails(4))
            self._case(f"shared {shared}", prompts, compared=(2,))
        same = self._tokens(min(self.longest, 300 + self._unit))
        self._case("identical", [same] * 4, compared=(1, 2, 3))
        self._conversation()
        self._after_flush(same)

    @property
    def _unit(self) -> int:
        """Tokens that a shared part must have at least before its branch is kept."""
        if self.traits is None:
            return 128
        return self.traits.min_gain_tokens + self.traits.checkpoint_grid

    def _shared_lengths(self) -> list[int]:
        lengths = {*_SHARED_TOKENS, self._unit + 58}
        chunk = self.traits.chunk_tokens if self.traits else None
        if chunk:
            lengths.add(2 * chunk + self._unit + 58)
        tail = self._tail_tokens
        fitting = sorted(length for length in lengths if length + tail <= self.longest)
        if len(fitting) < len(lengths):
            self.notes.append(
                f"left out: shared parts that need prompts beyond {self.longest} tokens"
            )
        return fitting

    @property
    def _tail_tokens(self) -> int:
        # Longer than a grid step, or the first prompt's end leaves a state in the shared part.
        return 20 + (self.traits.checkpoint_grid if self.traits else 128)

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(_TOKEN_IDS, k=count)

    def _tails(self, count: int) -> list[list[int]]:
        """Continuations that differ in their first token."""
        first = self._random.sample(_TOKEN_IDS, count)
        return [[token, *self._tokens(self._tail_tokens - 1)] for token in first]

    def _conversation(self) -> None:
        """Three turns, each continued from the tokens that the server sampled."""
        grid = self.traits.decode_grid if self.traits else 64
        steps = -(-(200 + self._unit) // grid)
        # Just before a point where decoding keeps a state, so that few tokens reach it.
        prompt = self._tokens(steps * grid - 4 if grid > 1 else 200)

        def turns() -> Iterator[list[int]]:
            history = prompt
            for _ in range(3):
                yield history
                history = history + self._last.tokens
                ahead = -(len(history) + 20) % grid + 16
                history = history + self._tokens(ahead)

        self._case("conversation", turns(), compared=(1, 2))

    def _after_flush(self, prompt: list[int]) -> None:
        if not self.client.flush():
            self.notes.append("left out: flush, because the server is busy")
            return
        self._case("flushed", [prompt] * 2, compared=(0, 1), salted_as="identical")

    def _case(
        self, name: str, prompts: Iterable[list[int]], compared: Sequence[int], salted_as: str = ""
    ) -> None:
        """Send prompts one after another; those at `compared` are also sent cold.

        A case has a salt of its own, so that the random prompts of two cases never meet.
        """
        salt = f"{self.salt}-{salted_as or name}"
        exact = self.traits and ExpectedCache(self.traits)
        pressed = self.traits and ExpectedCache(self.traits, keeps_unasked=False)
        for number, prompt in enumerate(prompts):
            answer = self._last = self.client.generate(prompt, salt)
            expected = exact.serve(prompt, answer.tokens) if exact else None
            # A full pool may decline or give up states that nobody asked for.
            fallback = pressed.serve(prompt, answer.tokens) if pressed else None
            excused = answer.cached == fallback != expected and self._is_pressed()
            difference = None
            if number in compared:
                self._cold_salts += 1
                cold = self.client.generate(prompt, f"{self.salt}-cold-{self._cold_salts}")
                difference = compare(cold, answer, self.tolerance)
            label = f"{name}, {number + 1}."
            row = Row(label, len(prompt), expected, answer.cached, bool(excused), difference)
            self.rows.append(row)

    def _is_pressed(self) -> bool:
        return self._pressure_now() > self._pressure

    def _pressure_now(self) -> int:
        status = cache_status(self.client.info()) if self.traits else None
        return sum(status["counters"][key] for key in _PRESSURE) if status else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:30000", help="of the server, without a path")
    add("--api-key", help="sent as a bearer token")
    add(
        "--tolerance",
        type=float,
        default=DEFAULT_TOLERANCE,
        help="largest difference of a logprob between hit and cold request, in natural log; "
        "where the two likeliest tokens are that close, either may be chosen (default: "
        "%(default)s, for bfloat16)",
    )
    add(
        "--any-cache",
        action="store_true",
        help="accept any number of cached tokens; for servers with another cache",
    )
    add(
        "--max-prompt-tokens",
        type=int,
        default=4096,
        help="longest prompt to send (default: %(default)s)",
    )
    add("--timeout", type=float, default=120.0, help="seconds for one answer")


def run(args: argparse.Namespace) -> int:
    """Verify and print; 0 if all is right, 1 if not, 2 if nothing could be verified."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    client = Client(args.url, args.api_key, args.timeout)
    rows: list[Row] = []
    try:
        info = client.info()
        if (info.get("dp_size") or 1) > 1:
            raise VerifyError("the server has --dp-size > 1; verify needs a server with one cache")
        traits = None if args.any_cache else ServerTraits.from_server_info(info)
        longest = min(args.max_prompt_tokens, prompt_limit(info) - OUTPUT_TOKENS)
        verifier = Verifier(client, traits, args.tolerance, longest, rows=rows)
        with console.status("sending prompts"):
            verifier.run()
        after = cache_status(client.info())
    except (VerifyError, UnsupportedServer) as error:
        if rows:  # what was found before the server went away
            print_rows(console, rows)
        console.print(f"[red]verify:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        return 2
    print_rows(console, rows)
    if after:
        counters = ", ".join(f"{key} {value}" for key, value in after["counters"].items())
        console.print(f"counters since start-up: {counters}", highlight=False)
    return _conclude(console, rows, verifier.notes, args.tolerance)


def _conclude(console: Console, rows: Sequence[Row], notes: Sequence[str], tolerance: float) -> int:
    for note in notes:
        console.print(note, highlight=False)
    problem = verdict(rows)
    ties = sum(1 for row in rows if row.difference and row.difference.is_tie)
    console.print(f"[red]failed:[/red] {problem}" if problem else "[green]all ok[/green]", end="")
    console.print(f"; {ties} ties within the tolerance of {tolerance}", highlight=False)
    return 1 if problem else 0


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """The table of all requests."""
    table = Table(title="Cached tokens, and hits against cold requests", title_justify="left")
    for column in ("case", "prompt", "expected", "got", "max |Δlogprob|", "ok"):
        table.add_column(column, justify="left" if column in ("case", "ok") else "right")
    for row in rows:
        delta = "" if row.difference is None else f"{row.difference.logprob:.4f}"
        mark = "[green]yes[/green]" if row.ok else "[red]NO[/red]"
        mark += " (pool is full)" if row.is_excused else ""
        mark += " (tie)" if row.difference and row.difference.is_tie else ""
        expected = "any" if row.expected is None else str(row.expected)
        table.add_row(row.case, str(row.prompt_tokens), expected, str(row.got), delta, mark)
    console.print(table)


def verdict(rows: Sequence[Row]) -> str | None:
    """One line about what is wrong, or None."""
    if not any(row.got for row in rows):
        return "no request hit: the server keeps no prefixes of this model"
    wrong = [row for row in rows if not row.ok]
    inexact = sum(1 for row in wrong if row.difference and row.difference.is_wrong)
    if not wrong:
        return None
    return (
        f"{len(wrong)} of {len(rows)} requests ({inexact} differ from a cold request, "
        f"{len(wrong) - inexact} only in cached tokens)"
    )

"""Compare what a step costs: servers of several caches, alive side by side, take turns.

    python -m bench.serving.steps                       # stock-python and auto, three servers each
    python -m bench.serving.steps --arms stock-rust,lru,auto --servers 2

Prompts are random, so that nothing is hit and all arms do the same work. While one server works the
processes of the others are stopped (SIGSTOP): servers that run one after another differ by ten
percent and more on a shared machine, and so do two servers with the same flags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from bench import pages
from bench.serving import arms
from bench.serving.__main__ import SMALL_FLAGS, SMALL_MODEL, SMALL_POOLS
from bench.serving.arms import Arm
from bench.serving.runs import COMMON_FLAGS, GUARD, CpuServer, launch
from bench.serving.spread import paired

AT_ONCE = 4
WORK = {"decode": (16, 200), "prefill": (1000, 1)}
"""Tokens of each prompt and of each reply; AT_ONCE requests run together."""


@dataclass
class Contender:
    """One of the servers of an arm, with the seconds that each round of each kind of work took."""

    arm: Arm
    server: CpuServer
    rng: np.random.Generator
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in WORK})

    def do(self, kind: str) -> float:
        """Seconds of one round of the work."""
        prompt, reply = WORK[kind]
        prompts = self.rng.integers(0x20, 0x7F, (AT_ONCE, prompt)).tolist()
        begin = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda ids: self.server.generate(ids, reply), prompts))
        return time.perf_counter() - begin

    def signal(self, number: int) -> None:
        """To the server's processes; not to their guard, which must be able to end them."""
        for process in psutil.Process(self.server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        chosen, _ = arms.choose(args.arms, None, ())
    except ValueError as error:
        return _refuse(str(error))
    if len(chosen) < 2:
        return _refuse("--arms names one arm; at least two are compared")
    if not args.model.exists():
        return _refuse(f"no {args.model}; make it with `hybrid-marconi make-model {args.model}`")
    try:
        contenders = _measure(args, chosen)
    except RuntimeError as error:  # a server that does not start, with the end of its log
        print(f"steps: {error}", file=sys.stderr)
        return 1
    table = report(chosen, contenders)
    print(table)
    if args.json:
        runs = [{"arm": one.arm.name, "seconds": one.seconds} for one in contenders]
        args.json.write_text(json.dumps({"work": WORK, "at_once": AT_ONCE, "servers": runs}))
    if args.fill:
        pages.fill(args.fill, "serving-steps", table)
    return 0


def _measure(args: argparse.Namespace, chosen: Sequence[Arm]) -> list[Contender]:
    flags = [*COMMON_FLAGS, *SMALL_FLAGS.split(), *SMALL_POOLS["pressure"].split()]
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = []
        for number in range(args.servers):
            for arm in chosen:
                log = logs / f"{arm.name}-{number}.log"
                server = stack.enter_context(_start(args.model, arm, flags, log))
                contender = Contender(arm, server, np.random.default_rng(number))
                for kind in WORK:
                    contender.do(kind)
                time.sleep(args.settle)
                contender.signal(signal.SIGSTOP)
                contenders.append(contender)
        _take_turns(contenders, args.rounds)
        return contenders


def _start(
    model: Path, arm: Arm, flags: Sequence[str], log: Path
) -> contextlib.AbstractContextManager[CpuServer]:
    return launch(
        model,
        None,
        *flags,
        *arm.flags,
        log=log,
        program=(GUARD, "-m", "sglang.launch_server"),
        environment=arm.environment,
    )


def _take_turns(contenders: list[Contender], rounds: int) -> None:
    """Round by round, each beginning with another server."""
    for number in range(rounds):
        first = number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            with contender.running():
                contender.do("prefill")  # to be warm again
                for kind in WORK:
                    contender.seconds[kind].append(contender.do(kind))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def report(chosen: Sequence[Arm], contenders: Sequence[Contender]) -> str:
    """Of each arm: the median round, and the ratio to the first arm, by pairs of servers.

    The ratio of two servers is the median over the rounds. It is called a difference if Student's
    t over the pairs of servers says so: rounds of one server would hide how far servers differ.
    """
    header = ["arm"]
    for kind, (prompt, reply) in WORK.items():
        header += [f"{kind} ({AT_ONCE} x {prompt}+{reply}), s", "ratio by server", "difference, %"]
    reference = [one for one in contenders if one.arm is chosen[0]]
    rows = []
    for arm in chosen:
        own = [one for one in contenders if one.arm is arm]
        row = [arm.title]
        for kind in WORK:
            row.append(f"{median(s for one in own for s in one.seconds[kind]):.2f}")
            ratios = [
                median(x / y for x, y in zip(a.seconds[kind], b.seconds[kind], strict=True))
                for a, b in zip(own, reference, strict=True)
            ]
            row.append(" ".join(f"{ratio:.3f}" for ratio in ratios))
            ones = dict.fromkeys(range(len(ratios)), 1.0)
            found = paired(dict(enumerate(ratios)), ones, ratio=True)
            stated = found is not None and found.stated
            row.append(f"{100 * found.mean:+.1f}" if stated else "none")
        rows.append(row)
    return pages.table(header, rows)


def _refuse(why: str) -> int:
    print(f"steps: {why}", file=sys.stderr)
    return 2


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving.steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    known = ", ".join(arm.name for arm in arms.KNOWN)
    add("--arms", type=lambda text: text.split(","), default=["stock-python", "auto"],
        help=f"of {known}; the first in this order is what all are compared with")  # fmt: skip
    add("--servers", type=_count, default=3, help="of each arm (3)")
    add("--rounds", type=_count, default=12, help="of each server (12)")
    add("--settle", type=float, default=10, help="seconds from a server's first work to its stop")
    add("--model", type=Path, default=Path(SMALL_MODEL), help="folder of the model")
    add("--json", type=Path, help="file for the seconds of every round")
    add("--fill", type=Path, metavar="PAGE", help="put the table into a page of Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())

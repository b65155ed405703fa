"""The command `hybrid-marconi`.

A subcommand is a module with `add_arguments(parser)` and `run(args) -> int`. Only the
chosen one is imported, so that help is immediate and works without SGLang.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

import sglang_hybrid

PROGRAM = "hybrid-marconi"


@dataclass(frozen=True)
class Command:
    """A subcommand: its module, one line of help, and what it needs of setup.py's extras."""

    module: str
    help: str
    extra: str = "sglang"


COMMANDS = {
    "make-model": Command(
        "sglang_hybrid.model.make_model", "write the small hybrid model that tests and demos use"
    ),
    "doctor": Command(
        "sglang_hybrid.cli.doctor", "check the installation against the installed SGLang"
    ),
    "cost": Command("sglang_hybrid.cli.cost", "bytes and FLOPs of a model's KV and checkpoints"),
    "replay": Command(
        "sglang_hybrid.cli.replay",
        "what a cache would do for a trace of requests: hit rates, FLOPs saved, TTFT",
        extra="sim",
    ),
    "verify": Command("sglang_hybrid.cli.verify", "check the cache of a running server"),
    "top": Command("sglang_hybrid.cli.top", "watch the cache of a running server"),
    "record": Command(
        "sglang_hybrid.cli.record", "write the requests that a running server remembers to a file"
    ),
}


class _Parser(argparse.ArgumentParser):
    """Of a subcommand: an error is one line, not preceded by all its options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in COMMANDS:
        _top_level_parser().parse_args(arguments or ["--help"])
    name, *rest = arguments
    try:
        module = importlib.import_module(COMMANDS[name].module)
        return _run(module, name, rest)
    except ModuleNotFoundError as error:
        print(f"{PROGRAM} {name}: {_missing(error, COMMANDS[name])}", file=sys.stderr)
        return 2


def _run(module: ModuleType, name: str, arguments: Sequence[str]) -> int:
    parser = _Parser(f"{PROGRAM} {name}", description=COMMANDS[name].help)
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(arguments))
    return status


def _top_level_parser() -> argparse.ArgumentParser:
    """Help, version and the error for an unknown subcommand; it never reaches a subcommand."""
    parser = argparse.ArgumentParser(PROGRAM, description=sglang_hybrid.__doc__)
    parser.add_argument("--version", action="version", version=sglang_hybrid.__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparsers.add_parser(name, help=command.help)
    return parser


def _missing(error: ModuleNotFoundError, command: Command) -> str:
    """What to install for a module that could not be imported."""
    package = (error.name or "").split(".")[0]
    if package == "sglang_hybrid":
        return f"{error.name} is not part of this installation; reinstall sglang-hybrid"
    return f"{error}; install it with: pip install 'sglang-hybrid[{command.extra}]'"


if __name__ == "__main__":
    sys.exit(main())

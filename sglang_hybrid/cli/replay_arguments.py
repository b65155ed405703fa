"""Arguments of `hybrid-marconi replay`, and what they mean to the simulator."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sglang_hybrid.core.presets import DTYPE_BYTES
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import parse_bytes
from sglang_hybrid.sim.sweep import (
    DEFAULT_ADMISSIONS,
    DEFAULT_POLICIES,
    INFINITE,
    NONE,
    SPECIAL,
    BudgetSize,
    check_policies,
    check_ratios,
    unique,
)
from sglang_hybrid.sim.traces.formats import AUTO, FORMATS
from sglang_hybrid.sim.workload import DEFAULT_PREFILL_TIME, Concurrency

DEFAULT_BUDGET = "6GiB"
PLOT_SUFFIXES = (".png", ".svg", ".pdf")

_EPILOG = """\
examples:
  hybrid-marconi replay --trace gen:shared-prefix --budget 6GiB,12GiB --bounds --plot out.png
  hybrid-marconi replay --trace requests.jsonl --model nemotron-h-8b --memory 40GiB --recommend
docs/replay.md explains the figures, docs/traces.md the formats of traces.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments, by what they concern."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    _add_what(parser)
    _add_trace(parser.add_argument_group("reading the trace (docs/traces.md)"))
    _add_model(parser.add_argument_group("model and time"))
    _add_output(parser.add_argument_group("output"))


def _add_what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--trace", nargs="+", metavar="PATH", help="files of one trace, or gen:NAME?KEY=NUMBER")
    add("--list", action="store_true", help="print policies, admissions and models, and stop")
    add(
        "--policy",
        default=",".join(DEFAULT_POLICIES),
        metavar="P,...",
        help="eviction policies, NAME:KEY=VALUE, such as marconi:alpha=1 (%(default)s)",
    )
    add(
        "--admission",
        default=",".join(DEFAULT_ADMISSIONS),
        metavar="A,...",
        help="where states are taken, NAME:KEY=VALUE (%(default)s)",
    )
    add(
        "--budget",
        metavar="B,...",
        help="memory for KV and states, such as 6GiB, 12GB, or 20%% of what a cache without "
        f"limit holds (default: that of --memory, else {DEFAULT_BUDGET})",
    )
    add(
        "--ratio",
        metavar="R,...",
        help="divide each budget into two pools as SGLang does with --mamba-full-memory-ratio "
        "(without: one budget for both)",
    )
    add("--bounds", action="store_true", help="also what no policy can exceed")
    add("--recommend", action="store_true", help="also how to run the server for this trace")
    add("--memory", metavar="B", help="memory for --recommend (default: the largest budget)")


def _add_trace(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--format", default=AUTO, help="of the files (%(default)s: by their content)")
    add("--tokenizer", metavar="T", help="bytes, qwen, hf:NAME_OR_PATH or tiktoken:NAME (bytes)")
    add("--rendering", default="chatml", help="chatml, strip-reasoning or plain (%(default)s)")
    add("--outputs", default="continued", help="of block traces: continued, unique (%(default)s)")
    add("--arrival", metavar="MODEL", help="of sessions: recorded, poisson:RATE, ...")
    add("--gap", metavar="MODEL", help="between the turns of a session: recorded, fixed:S, ...")
    add("--seed", default="0", help="of these models, and of policies that sample (%(default)s)")
    add("--limit", metavar="N", help="the first N requests")
    add("--max-input-tokens", metavar="N", help="a session ends before its first longer prompt")
    add("--strict", action="store_true", help="a malformed entry is an error")
    add("--trace-memory", metavar="B", default="8GB", help="that reading may take (%(default)s)")


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    dtypes = ", ".join(DTYPE_BYTES)
    add(
        "--model",
        default="nemotron-h-8b",
        metavar="NAME|PATH",
        help="a preset, a config.json or its folder (%(default)s)",
    )
    add("--tp", default="1", metavar="N", help="tensor-parallel shards (%(default)s)")
    add("--kv-dtype", default="bfloat16", help=f"type of the KV (%(default)s): {dtypes}")
    add("--ssm-dtype", default="float32", help="type of recurrent states (%(default)s)")
    add("--conv-dtype", default="bfloat16", help="type of convolution windows (%(default)s)")
    add(
        "--prefill-time",
        default=DEFAULT_PREFILL_TIME,
        metavar="MODEL",
        help="roofline:DEVICE, roofline:FLOPS or csv:FILE, for the TTFT (%(default)s)",
    )
    add(
        "--concurrent",
        metavar="N",
        help="at most N requests run side by side (without: one after another)",
    )
    add(
        "--seconds-per-output-token",
        metavar="S",
        help="of a running request, with --concurrent (0.01)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--details", action="store_true", help="also evictions, reuse, and figures by length")
    add("--json", type=Path, metavar="FILE", help="write all figures there, a list of objects")
    add("--plot", type=Path, metavar="FILE", help=f"draw them: {', '.join(PLOT_SUFFIXES)}")
    add(
        "--hits",
        type=Path,
        metavar="FILE",
        help="write a JSON line per request, input and hit, if there is exactly one replay",
    )
    add("--workers", metavar="N", help="processes (default: by the work there is)")


class Choices:
    """Arguments that have been checked; the trace has not been read yet.

    Raises:
        ValueError: one line that names the value, what is allowed and what to do.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        if not args.trace:
            raise ValueError("--trace is missing; give files, or a generator: gen:shared-prefix")
        self.trace_paths: list[str] = args.trace
        self.policies = check_policies(_texts("--policy", args.policy))
        self.admissions = _texts("--admission", args.admission)
        for text in self.admissions:
            parse_admission(text)
        self.memory = _memory(args)
        budgets = args.budget or args.memory or DEFAULT_BUDGET
        self.sizes = [BudgetSize.parse(text) for text in _texts("--budget", budgets)]
        self.ratios = check_ratios(
            None
            if args.ratio is None
            else [_number("--ratio", text, float) for text in _texts("--ratio", args.ratio)]
        )
        if args.format not in (AUTO, *FORMATS):
            raise ValueError(
                f"--format {args.format!r} is not allowed; allowed: {', '.join((AUTO, *FORMATS))}"
            )
        self.seed = _integer("--seed", args.seed, 0)
        self.tp = _integer("--tp", args.tp, 1)
        self.workers = _optional("--workers", args.workers, 1)
        self.concurrency = _concurrency(args)
        self.trace_options = _trace_options(args, self.seed)
        _check_outputs(args)
        if args.hits is not None and self.replays != 1:
            raise ValueError(
                f"--hits {args.hits}: there would be {self.replays} replays; allowed: exactly "
                "one; give one --policy, one --admission, one --budget and at most one --ratio"
            )

    @property
    def replays(self) -> int:
        """How many the policies, admissions, budgets and ratios make."""
        real = [policy for policy in self.policies if policy not in SPECIAL]
        limited = len(real) * len(self.sizes) * len(self.ratios)
        unlimited = INFINITE in self.policies
        return len(self.admissions) * (limited + unlimited) + (NONE in self.policies)

    @property
    def path(self) -> str | list[str]:
        """What `load_trace` reads."""
        return self.trace_paths[0] if len(self.trace_paths) == 1 else self.trace_paths


def _memory(args: argparse.Namespace) -> BudgetSize | None:
    if args.memory is None:
        return None
    if not args.recommend:
        raise ValueError(f"--memory {args.memory} has no meaning without --recommend; add that")
    return BudgetSize.parse(args.memory)


def _concurrency(args: argparse.Namespace) -> Concurrency | None:
    if args.concurrent is None:
        if args.seconds_per_output_token is not None:
            raise ValueError(
                f"--seconds-per-output-token {args.seconds_per_output_token} has no meaning "
                "without --concurrent N; add that"
            )
        return None
    running = _integer("--concurrent", args.concurrent, 1)
    if args.seconds_per_output_token is None:
        return Concurrency(running)
    seconds = _number("--seconds-per-output-token", args.seconds_per_output_token, float)
    return Concurrency(running, seconds)


def _trace_options(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    return {
        "format": args.format,
        "tokenizer": args.tokenizer,
        "rendering": args.rendering,
        "outputs": args.outputs,
        "arrival": args.arrival,
        "gap": args.gap,
        "seed": seed,
        "strict": args.strict,
        "limit": _optional("--limit", args.limit, 1),
        "max_input_tokens": _optional("--max-input-tokens", args.max_input_tokens, 0),
        "max_memory": _trace_memory(args.trace_memory),
    }


def _trace_memory(text: str) -> float:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"--trace-memory {error}") from None
    if not 1 <= size < 2**63:
        raise ValueError(f"--trace-memory {text!r} is not allowed; allowed: a size such as 8GB")
    return size


def _texts(flag: str, value: str) -> list[str]:
    texts = [text.strip() for text in value.split(",")]
    if not all(texts):
        raise ValueError(
            f"{flag} {value!r} has an empty entry; allowed: entries with a comma between two; "
            "remove the comma too many"
        )
    return unique(texts)


def _number(flag: str, text: str, kind: type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"{flag} {text!r} is not allowed; allowed: {what}") from None


def _integer(flag: str, text: str, least: int) -> int:
    value = int(_number(flag, text, int))
    if not least <= value < 2**31:
        raise ValueError(
            f"{flag} {value} is not allowed; allowed: an integer from {least} to {2**31 - 1}"
        )
    return value


def _optional(flag: str, text: str | None, least: int) -> int | None:
    return None if text is None else _integer(flag, text, least)


def _check_outputs(args: argparse.Namespace) -> None:
    """Everything that is to be written can be, and overwrites nothing that is read."""
    taken = {Path(path).resolve() for path in args.trace}
    for flag, path in (("--json", args.json), ("--plot", args.plot), ("--hits", args.hits)):
        if path is None:
            continue
        if path.resolve() in taken:
            raise ValueError(
                f"{flag} {path} is also the trace or another output; give it a name of its own"
            )
        taken.add(path.resolve())
        if path.is_dir():
            raise ValueError(f"{flag} {path} is a folder; allowed: a file")
        if not path.resolve().parent.is_dir():
            raise ValueError(f"{flag} {path}: there is no such folder; make it first")
    if args.plot is not None and args.plot.suffix.lower() not in PLOT_SUFFIXES:
        raise ValueError(
            f"--plot {args.plot} is not allowed; allowed: a name that ends in "
            f"{', '.join(PLOT_SUFFIXES)}"
        )

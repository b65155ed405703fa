"""Caches side by side: servers one after another, the same flags but for the cache.

    python -m bench.serving --short                       # three arms, two workloads, two seeds
    python -m bench.serving --traces DIR                  # everything, on the small model
    python -m bench.serving --size full --model NAME ...  # a served model: docs/benchmarks.md

An interrupted command goes on where it stopped when it is given again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bench import pages
from bench.serving import arms, choice, plan, plots, report, workloads
from bench.serving.arms import Arm
from bench.serving.runs import COMMON_FLAGS, Options, Runner
from bench.serving.spread import CONFIDENCE
from bench.serving.store import DONE, Store
from bench.serving.workloads import Workload

SMALL_MODEL = ".model"
SMALL_POOLS = {
    "pressure": "--max-mamba-cache-size 22 --max-total-tokens 20480",
    "ample": "--max-mamba-cache-size 256 --max-total-tokens 262144",
}
SMALL_FLAGS = "--max-running-requests 4"
SEEDS = "0,1,2"
SHORT_SEEDS = "0,1"
MARKER = "serving-results"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 if all runs finished, 1 if some failed, 2 for wrong arguments."""
    parser = _parser()
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 160)
    # Ended from outside, the command must still end its server.
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return _run(args, console)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        console.print(f"[bold red]failed[/bold red]: {escape(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        return 130


def _run(args: argparse.Namespace, console: Console) -> int:
    if str(args.model) == SMALL_MODEL and not args.model.exists():
        raise ValueError(
            f"no {SMALL_MODEL}; make it with `hybrid-marconi make-model {SMALL_MODEL}`, "
            "or name another with --model"
        )
    chosen_arms, no_arms = arms.choose(
        args.arms or (arms.SHORT if args.short else arms.NAMES),
        args.patched_tree,
        shlex.split(args.patched_flags),
    )
    chosen, no_workloads = choice.choose(
        args.workloads or (choice.SHORT if args.short else list(choice.KNOWN)),
        args.size,
        _sources(args),
        _changes(args.set),
    )
    seeds = args.seeds or _seeds(SHORT_SEEDS if args.short else SEEDS)
    options = _options(args, chosen)
    if args.plan:
        _print_plan(console, options, chosen_arms, chosen, seeds)
        return 0
    store = Store(args.out, _settings(args, options, chosen_arms, chosen))
    left_out = {**no_arms, **no_workloads}
    if not args.report:
        left_out |= _measure(options, store, console, chosen_arms, chosen, seeds)
    references = args.references or [arm.name for arm in chosen_arms if arm.stock]
    titles = {arm.name: arm.title for arm in chosen_arms}
    results = store.results()
    found = report.compare(results, titles, references, store.rates(), args.confidence, left_out)
    _write(args, store, found, console)
    return 0 if all(result["state"] == DONE for result in results) else 1


def _measure(
    options: Options,
    store: Store,
    console: Console,
    chosen_arms: list[Arm],
    chosen: list[Workload],
    seeds: list[int],
) -> dict[str, str]:
    """Make the runs; returns why some workloads could not run."""
    for workload in chosen:
        for seed in seeds:
            workload.prepare(store.data(workload.name, seed), seed)
    runner = Runner(options, store, console)
    without = runner.find_rates(chosen_arms[0], chosen, seeds[0])
    with_rate = [workload for workload in chosen if workload.name not in without]
    for block in plan.blocks(chosen_arms, with_rate, seeds):
        runner.run(block)
    return without


def _write(
    args: argparse.Namespace, store: Store, found: report.Comparison, console: Console
) -> None:
    report.print_comparison(found, console)
    if not found.values:
        return
    text = report.markdown(found)
    (store.folder / "report.md").write_text(text + "\n")
    summary = json.dumps(report.as_json(found), indent=1)
    (store.folder / "report.json").write_text(summary + "\n")
    drawn = plots.draw(found, store.folder)
    console.print(
        f"written to {store.folder}: report.md, report.json, "
        + ", ".join(path.name for path in drawn)
    )
    if args.fill:
        pages.fill(args.fill, MARKER, text)


def _options(args: argparse.Namespace, chosen: list[Workload]) -> Options:
    small = args.size == "small"
    pools = {}
    for name, given in (("pressure", args.pressure_flags), ("ample", args.ample_flags)):
        if given is None and not small and any(w.pools == name for w in chosen):
            raise ValueError(
                f"--size full needs --{name}-flags, the flags of servers whose pools are "
                + ("too small for the workloads" if name == "pressure" else "large enough")
                + "; '' leaves them to SGLang"
            )
        pools[name] = tuple(shlex.split(SMALL_POOLS[name] if given is None else given))
    flags = args.server_flags if args.server_flags is not None else SMALL_FLAGS if small else ""
    rates = {}
    for text in args.rate:
        name, _, value = text.partition("=")
        if name not in choice.KNOWN or not _positive(value):
            raise ValueError(f"--rate {text}: not WORKLOAD=ARRIVALS_PER_SECOND, such as prefixes=4")
        rates[name] = float(value)
    return Options(
        str(args.model),
        tuple(shlex.split(flags)),
        pools,
        args.share,
        args.closed,
        rates,
        args.warm_up,
        args.start_timeout,
        args.run_timeout,
    )


def _settings(
    args: argparse.Namespace, options: Options, chosen_arms: list[Arm], chosen: list[Workload]
) -> dict[str, dict[str, Any]]:
    """What must be the same for runs to be compared."""
    return {
        "common": {
            "model": options.model,
            "size": args.size,
            "flags": list(options.flags),
            "share": options.share,
            "closed": options.closed,
            "warm_up": options.warm_up,
            "sglang": importlib.metadata.version("sglang"),
            "machine": _machine(),
        },
        "arms": {arm.name: arm.settings() for arm in chosen_arms},
        "workloads": {
            workload.name: {
                **workload.settings(),
                "pool_flags": list(options.pool_flags[workload.pools]),
                "given_rate": options.rates.get(workload.name),
            }
            for workload in chosen
        },
    }


def _machine() -> str:
    """Its GPUs, or its cores."""
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode == 0:
            return ", ".join(listed.stdout.split("\n")).strip(", ")
    return f"{os.cpu_count()} cores, no GPU"


def _sources(args: argparse.Namespace) -> dict[str, Path]:
    """The traces that are there, by the name of the workload.

    Raises:
        ValueError: a file or folder that was named does not exist.
    """
    for flag, path in (
        ("--traces", args.traces),
        ("--mooncake", args.mooncake),
        ("--sharegpt", args.sharegpt),
    ):
        if path is not None and not path.exists():
            raise ValueError(f"{flag} {path} does not exist")
    found: dict[str, Path] = {}
    for name, kind in choice.KNOWN.items():
        if args.traces and kind.trace:
            for path in (args.traces / f"{kind.trace}.gz", args.traces / kind.trace):
                if path.exists():
                    found[name] = path
    if args.mooncake:
        found[workloads.MooncakeTrace.name] = args.mooncake
    if args.sharegpt:
        found[workloads.ShortChats.name] = args.sharegpt
    return found


def _changes(texts: list[str]) -> dict[str, dict[str, str]]:
    changes: dict[str, dict[str, str]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        workload, dot, name = place.rpartition(".")
        if not (equals and dot):
            raise ValueError(f"--set {text}: not WORKLOAD.FIELD=VALUE, such as prefixes.groups=64")
        changes.setdefault(workload, {})[name] = value
    return changes


def _print_plan(
    console: Console,
    options: Options,
    chosen_arms: list[Arm],
    chosen: list[Workload],
    seeds: list[int],
) -> None:
    """The command line of every server, and in which order they serve what."""
    for arm in chosen_arms:
        for pools, _ in plan.by_pools(chosen):
            variables = "".join(f"{k}={shlex.quote(v)} " for k, v in arm.environment.items())
            flags = shlex.join(options.server_flags(arm, pools))
            command = f"python -m sglang.launch_server --model-path {options.model} {flags}"
            console.print(f"{arm.title}, {pools} pools:\n  {variables}{command}", soft_wrap=True)
    for number, block in enumerate(plan.blocks(chosen_arms, chosen, seeds), 1):
        names = ", ".join(workload.name for workload in block.workloads)
        console.print(f"{number}. seed {block.seed}, {block.arm.name}, {block.pools}: {names}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving",
        usage="%(prog)s [--short] [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--short", action="store_true", help="fewer arms, workloads and seeds, where not given")
    add("--out", type=Path, default=Path("serving-results"), help="folder of the results")
    add("--model", type=Path, default=Path(SMALL_MODEL), help="folder or name of the model")
    add("--size", choices=workloads.SIZES, default="small", help="of the workloads")
    add("--arms", type=_list, help=f"of {', '.join(arms.NAMES)} (default: all)")
    add("--workloads", type=_list, help=f"of {', '.join(choice.KNOWN)} (default: all)")
    add("--seeds", type=_seeds, help=f"default: {SEEDS}; with --short {SHORT_SEEDS}")
    add("--traces", type=Path, help="folder of recorded conversations and arrivals")
    add("--mooncake", type=Path, help="a mooncake trace, instead of that in --traces")
    add("--sharegpt", type=Path, help="a ShareGPT file for short-chats, instead of made-up text")
    add("--patched-tree", type=Path, help="what `python patches/tree.py DEST` built")
    add("--patched-flags", default=arms.PATCHED_FLAGS, help="of the server of that tree")
    add("--server-flags", help=f"of all servers (small: {SMALL_FLAGS!r})")
    add("--pressure-flags", help=f"pools that are too small (small: {SMALL_POOLS['pressure']!r})")
    add("--ample-flags", help=f"pools that hold everything (small: {SMALL_POOLS['ample']!r})")
    add("--set", action="append", default=[], metavar="WORKLOAD.FIELD=VALUE", help="of a workload")
    add("--rate", action="append", default=[], metavar="WORKLOAD=R", help="arrivals per second")
    add("--share", type=_share, default=0.8, help="of the closed-loop throughput, is the rate")
    add("--closed", type=_count, default=8, help="arrivals at a time in the closed loop")
    add("--warm-up", type=_count, default=24, help="requests before each run")
    add("--start-timeout", type=float, default=600, help="seconds for a server")
    add("--run-timeout", type=float, default=3600, help="seconds for a run")
    add("--references", type=_list, help="arms to compare with (default: the stock ones)")
    add("--confidence", type=_share, default=CONFIDENCE, help="of differences that are stated")
    add("--plan", action="store_true", help="print what would run; start nothing")
    add("--report", action="store_true", help="run nothing; report what is in --out")
    add("--fill", type=Path, metavar="PAGE", help=f"put the tables into a page, at {MARKER}")
    parser.epilog = f"All servers also get {' '.join(COMMON_FLAGS)}."
    return parser


def _list(text: str) -> list[str]:
    return text.split(",")


def _seeds(text: str) -> list[int]:
    """Distinct numbers of 0 or more; argparse turns a ValueError into its message."""
    seeds = [int(part) for part in text.split(",")]
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"{text}: not distinct numbers from 0, such as 0,1,2")
    return seeds


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: not between 0 and 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 1")
    return value


def _positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())

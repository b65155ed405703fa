"""Self-tuning on real servers.

    python -m bench.tuning run --model DIR [--traces DIR] [--workloads A,B] [--servers X,Y]
    python -m bench.tuning simulate --model DIR [--traces DIR]
    python -m bench.tuning report --model DIR
    python -m bench.tuning throughput --model DIR

`run` starts one server after another and keeps what it saw in --out; `simulate` replays the
same streams in the simulator; `report` fills docs/tuning-results.md and draws its plots;
`throughput` compares requests per second with and without tuning.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench.pages import fill
from bench.tuning import plots, report
from bench.tuning.runs import recorded_replies, run_all
from bench.tuning.servers import KNOWN, Server
from bench.tuning.simulate import POLICIES, costs_of, simulate
from bench.tuning.streams import Stream
from bench.tuning.throughput import compare
from bench.tuning.workloads import REQUESTS, SYNTHETIC, Pools, make_stream

PAGE = "tuning-results.md"


def main(argv: list[str] | None = None) -> int:
    """The exit status is 2 for a wrong argument."""
    parser = _parser()
    args = parser.parse_args(argv)
    # Ended from outside, a run must still end its server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        COMMANDS[args.command](args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def _run(args: argparse.Namespace) -> None:
    servers = [Server.parse(text) for text in args.servers]
    run_all(
        _streams(args),
        servers,
        args.model,
        _pools(args),
        args.out,
        seed=args.seed,
        concurrency=args.concurrency,
        metrics=args.metrics,
    )


def _simulate(args: argparse.Namespace) -> None:
    costs, pools = costs_of(args.model), _pools(args)
    found, infinite = {}, {}
    for stream in _streams(args):
        replies = recorded_replies(args.out, stream)
        found[stream.name] = simulate(stream, costs, pools, args.policies, args.admission, replies)
        without_limit = simulate(stream, costs, None, ["lru"], args.admission, replies)
        infinite[stream.name] = without_limit["lru"].hit_rate
        for policy, replayed in found[stream.name].items():
            rates = " ".join(f"{100 * rate:3.0f}" for rate in replayed.windows)
            later = ", ".join(f"{arm} from {at}" for at, arm in replayed.switches[1:])
            print(f"{stream.name:8} {policy:20} {replayed.hit_rate:6.1%} |{rates} | {later}")
    text = report.simulated_table(found, infinite)
    if args.fill:
        fill(args.docs / PAGE, "tuning-simulated", text)
    else:
        print(text)


def _report(args: argparse.Namespace) -> None:
    runs = report.load_runs(args.out)
    if not runs:
        raise ValueError(f"{args.out} holds no runs; make some with `python -m bench.tuning run`")
    page = args.docs / PAGE
    fill(page, "tuning-results", report.result_table(runs, costs_of(args.model)))
    fill(page, "tuning-parts", report.part_table(runs))
    fill(page, "tuning-switches", report.log_table(runs))
    shown = []
    for (strategy, name), of_workload in runs.items():
        file = f"img/tuning-{name}-{strategy.replace('_', '-')}.png"
        plots.draw(f"{name}, {strategy}", of_workload, args.docs / file)
        shown.append(f"![Hit rate over time of {name}, {strategy}]({file})")
    fill(page, "tuning-plots", "\n\n".join(shown))


def _throughput(args: argparse.Namespace) -> None:
    servers = [Server.parse(text) for text in args.servers]
    text = compare(
        _streams(args)[0],
        servers,
        args.model,
        _pools(args),
        rounds=args.rounds,
        concurrency=args.concurrency,
        warm_up=args.warm_up,
    )
    if args.fill:
        fill(args.docs / PAGE, "tuning-throughput", text)
    else:
        print(text)


COMMANDS = {
    "run": _run,
    "simulate": _simulate,
    "report": _report,
    "throughput": _throughput,
}


def _streams(args: argparse.Namespace) -> list[Stream]:
    names = args.workloads or [name for name in REQUESTS if args.traces or name in SYNTHETIC]
    return [make_stream(name, args.traces, args.requests, args.seed) for name in names]


def _pools(args: argparse.Namespace) -> Pools:
    return Pools(args.state_slots, args.kv_tokens, args.running, args.strategy)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        command = commands.add_parser(name)
        add = command.add_argument
        add("--model", type=Path, default=Path(".model"), help="folder of the small model")
        add("--out", type=Path, default=Path("bench/results/tuning"), help="holds the runs")
        add("--docs", type=Path, default=Path("docs"), help=f"holds {PAGE}")
        if name == "report":
            continue
        add("--traces", type=Path, help="folder of recorded conversations, for chat and agent")
        add("--workloads", type=_list, help=f"of {', '.join(REQUESTS)} (default: all that can)")
        add("--requests", type=int, help="of each workload (default: what the page has)")
        add("--seed", type=int, default=0, help="of the streams")
        add("--state-slots", type=int, default=Pools.state_slots)
        add("--kv-tokens", type=int, default=Pools.kv_tokens)
        add("--running", type=int, default=Pools.running, help="requests that a server runs")
        add("--strategy", default=Pools.strategy, help="--mamba-radix-cache-strategy")
        if name != "run":
            add("--fill", action="store_true", help=f"put the table into {PAGE}")
        if name == "simulate":
            add("--policies", type=_list, default=POLICIES)
            add("--admission", default="shipped")
            continue
        default = ["utility", "auto"] if name == "throughput" else ["stock", "lru", "marconi"]
        if name == "run":
            default.append("auto")
            add("--metrics", action="store_true", help="also keep the cache's metrics")
        else:
            add("--rounds", type=int, default=3, help="starts of each server")
            add("--warm-up", type=int, default=200, help="requests that do not count")
        add(
            "--servers",
            nargs="+",
            default=default,
            help=f"{', '.join(KNOWN)}, or NAME=JSON of --cache-config",
        )
        add("--concurrency", type=int, default=1 if name == "run" else 4, help="requests at a time")
    return parser


def _list(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())

"""Run the experiments; fill the tables of docs/paper.md and draw its plots.

python -m bench.paper --traces DIR [--out DIR] [--docs DIR] [--only NAME]

Without --traces only what needs no stored trace is run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from bench.pages import fill
from bench.paper import arrivals, article, blocks, comparison, contention, models
from bench.replays import missing_traces

SECTIONS = {
    "article": article,
    "blocks": blocks,
    "comparison": comparison,
    "contention": contention,
    "models": models,
    "arrivals": arrivals,
}
NEED_TRACES = ("comparison", "contention", "models", "arrivals")
USE_TRACES = ("blocks", *NEED_TRACES)


def main() -> int:
    """The exit status is 2 if nothing could be run."""
    args = _arguments()
    if args.traces is None and args.only in NEED_TRACES:
        print(f"{args.only} needs --traces", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    for name, section in SECTIONS.items():
        if args.only not in (None, name):
            continue
        if args.traces is None and name in NEED_TRACES:
            print(f"{name:12} left out: needs --traces")
            continue
        start, cpu_start = time.perf_counter(), time.process_time()
        result = section.run(args.traces)
        if args.traces is not None or name not in USE_TRACES:  # never half a result over a whole
            (args.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for place, text in section.tables(result).items():
            fill(args.docs / "paper.md", place, text)
        section.plot(result, args.docs / "img")
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        print(f"{name:12} {seconds:6.1f} s, of which computing {cpu:6.1f} s", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, help="folder of NAME.jsonl.gz, see docs/paper.md")
    parser.add_argument("--out", type=Path, default=Path("bench/results/paper"))
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="holds paper.md")
    parser.add_argument("--only", choices=SECTIONS)
    args = parser.parse_args()
    if args.traces is not None and (missing := missing_traces(args.traces)):
        parser.error(f"--traces {args.traces}: lacks {', '.join(missing)} (.jsonl.gz)")
    return args


if __name__ == "__main__":
    sys.exit(main())

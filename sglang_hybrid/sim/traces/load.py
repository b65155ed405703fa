"""`load_trace`: any trace, by its path or the name of a generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from sglang_hybrid.sim.trace import NoRequestsError, Trace
from sglang_hybrid.sim.traces.arrivals import ARRIVALS, GAPS, parse_timing, schedule
from sglang_hybrid.sim.traces.formats import AUTO, find_format
from sglang_hybrid.sim.traces.generators import PREFIX, generate
from sglang_hybrid.sim.traces.memory import DEFAULT_BYTES, Memory
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.order import without_long
from sglang_hybrid.sim.traces.source import Source, TraceError, TraceReport
from sglang_hybrid.sim.traces.tokenizers import make_tokenizer

TracePath = str | PathLike[str]


def load_trace(
    path: TracePath | Sequence[TracePath],
    *,
    format: str = AUTO,
    tokenizer: str | None = None,
    rendering: str = "chatml",
    outputs: str = "continued",
    arrival: str | None = None,
    gap: str | None = None,
    seed: int = 0,
    strict: bool = False,
    limit: int | None = None,
    max_input_tokens: int | None = None,
    max_memory: float = DEFAULT_BYTES,
    report: TraceReport | None = None,
) -> Trace:
    """Read a trace, or generate one; docs/traces.md describes formats and options.

    Args:
        path: a file, a folder of `.traj` files, several files, or `gen:NAME?KEY=NUMBER`.
        format: its format; `auto` goes by the content.
        tokenizer: for text: `bytes`, `qwen`, `hf:NAME_OR_PATH` or `tiktoken:NAME`.
        rendering: for text: `chatml`, `strip-reasoning` or `plain`.
        outputs: for block hashes without outputs: `continued` or `unique`.
        arrival: model of session starts; None is the format's default.
        gap: model of the time between turns; None is the format's default.
        seed: of the models.
        strict: the first malformed entry ends the reading.
        limit: so many requests at most, by arrival.
        max_input_tokens: longest prompt; None is the format's default, 0 no limit.
        max_memory: bytes that the trace may take while it is read (an estimate).
        report: is filled with what was read and what was left out.

    Raises:
        ValueError: an option that is not allowed.
        TraceError: nothing that can be read, more than `max_memory`, or with `strict` a
            malformed entry.
        OSError: a file that cannot be opened.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit} is not allowed; allowed: from 1")
    if arrival is not None:
        parse_timing("arrival", arrival, ARRIVALS)
    if gap is not None:
        parse_timing("gap", gap, GAPS)
    memory = Memory(max_memory)
    options = ReadOptions(make_tokenizer(tokenizer), rendering, outputs, max_input_tokens)
    if isinstance(path, str) and path.startswith(PREFIX):
        trace = _cut(generate(path), max_input_tokens)
        if arrival is not None or gap is not None:
            trace = schedule(trace, arrival, gap, seed)
    else:
        report = TraceReport() if report is None else report
        source = Source(_files(path), report, strict, memory)
        trace = _read(source, format, options, arrival, gap, seed)
    return trace if limit is None else trace.head(limit)


def _read(
    source: Source,
    format: str,
    options: ReadOptions,
    arrival: str | None,
    gap: str | None,
    seed: int,
) -> Trace:
    known = find_format(source, format)
    if len(source.paths) > 1 and not known.text:
        raise TraceError(f"{len(source.paths)} files; a trace of this format is one file")
    try:
        trace = known.read(source, options)
    except NoRequestsError as error:
        problems = source.report.problems
        if not problems:
            raise
        raise TraceError(
            f"{error}: {len(problems)} of {source.report.entries} entries are malformed, the "
            f"first being {problems[0]}; correct them, or name the format"
        ) from None
    if known.cuts_sessions:
        trace = _cut(trace, options.max_input_tokens)
    arrival, gap = arrival or known.arrival, gap or known.gap
    if arrival or gap or known.text or (np.diff(trace.arrival) < 0).any():
        trace = schedule(trace, arrival, gap, seed)
    left_out = source.report.summary()
    return replace(trace, assumptions=(*trace.assumptions, left_out)) if left_out else trace


def _cut(trace: Trace, max_input_tokens: int | None) -> Trace:
    return without_long(trace, max_input_tokens) if max_input_tokens else trace


def _files(path: TracePath | Sequence[TracePath]) -> list[Path]:
    """The files that ``path`` names.

    Raises:
        TraceError: there are none.
        FileNotFoundError: one does not exist.
    """
    given = [path] if isinstance(path, str | PathLike) else list(path)
    files: list[Path] = []
    for item in map(Path, given):
        if item.is_dir():
            found = sorted(item.rglob("*.traj*"))
            if not found:
                raise TraceError(f"{item}: a folder without .traj files; allowed: those, or a file")
            files += found
        elif not item.exists():
            raise FileNotFoundError(f"trace {item} does not exist")
        else:
            files.append(item)
    if not files:
        raise TraceError("no trace is given; allowed: a file, a folder of .traj files, gen:NAME")
    return files

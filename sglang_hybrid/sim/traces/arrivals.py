"""When requests arrive: the starts of sessions, and the gaps between their turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sglang_hybrid.sim.trace import FloatArray, IntArray, Trace
from sglang_hybrid.sim.traces.order import reorder

ARRIVALS = {
    "recorded": 0,
    "poisson:RATE": 1,
    "all-at-once": 0,
    "concurrent:SESSIONS": 1,
}
GAPS = {
    "recorded": 0,
    "recorded:CAP": 1,
    "fixed:SECONDS": 1,
    "lognormal:MEDIAN:SIGMA": 2,
    "exponential:MEAN": 1,
}


@dataclass(frozen=True)
class Timing:
    """A model of times with its parameters, as `NAME[:NUMBER...]`."""

    name: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{number:g}" for number in self.numbers)])


def parse_timing(what: str, text: str, forms: dict[str, int]) -> Timing:
    """Read ``text`` as one of ``forms``.

    Raises:
        ValueError: it is none of them.
    """
    name, *parts = text.split(":")
    known = {(form.split(":")[0], count) for form, count in forms.items()}
    try:
        numbers = tuple(float(part) for part in parts)
        if (name, len(numbers)) not in known or not all(0 <= n < float("inf") for n in numbers):
            raise ValueError
        if name in ("poisson", "concurrent") and (
            numbers[0] <= 0 or (name == "concurrent" and numbers[0] % 1)
        ):
            raise ValueError
        if name == "lognormal" and numbers[0] <= 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{what} {text!r} is not allowed; allowed: {', '.join(forms)}") from None
    return Timing(name, numbers)


def schedule(trace: Trace, arrival: str | None, gap: str | None, seed: int) -> Trace:
    """Requests at the times of the models, in the order of their arrival.

    None stands for recorded times where every request has one, else for
    ``poisson:1`` and ``fixed:5``. Requests without a session are sessions of their own.

    Raises:
        ValueError: unknown models, or recorded times that the trace does not have.
    """
    timed = bool(np.isfinite(trace.arrival).all())
    starting = parse_timing("arrival", arrival or ("recorded" if timed else "poisson:1"), ARRIVALS)
    pausing = parse_timing("gap", gap or ("recorded" if timed else "fixed:5"), GAPS)
    for what, model in (("arrival", starting), ("gap", pausing)):
        if model.name == "recorded" and not timed:
            raise ValueError(
                f"{what} {model} needs times, which {trace.name!r} lacks; allowed: another model"
            )
    rng = np.random.default_rng(seed)
    sessions = _sessions(trace)
    recorded = [trace.arrival[requests] for requests in sessions]
    if (starting.name, str(pausing)) == ("recorded", "recorded"):
        times = trace.arrival
    else:
        starts_before_gaps = _starts(starting, recorded, rng)
        offsets = [_offsets(pausing, session, rng) for session in recorded]
        starts = starts_before_gaps(offsets)
        times = np.empty(len(trace))
        for requests, start, offset in zip(sessions, starts, offsets, strict=True):
            times[requests] = start + offset
    order = np.argsort(times, kind="stable")
    assumptions = (*trace.assumptions, *_sentences(starting, pausing, seed))
    return replace(reorder(trace, order, times[order]), assumptions=assumptions)


def _sessions(trace: Trace) -> list[IntArray]:
    """The requests of every session, sessions by their first request."""
    members: dict[int, list[int]] = {}
    for request, session in enumerate(trace.session.tolist()):
        members.setdefault(session if session >= 0 else -1 - request, []).append(request)
    return [np.array(requests, dtype=np.int64) for requests in members.values()]


def _starts(
    model: Timing, recorded: list[FloatArray], rng: np.random.Generator
) -> Callable[[list[FloatArray]], FloatArray]:
    """Starts of the sessions, by the offsets of their turns."""
    if model.name == "recorded":
        return lambda offsets: np.array([times[0] for times in recorded])
    if model.name == "all-at-once":
        return lambda offsets: np.zeros(len(recorded))
    if model.name == "poisson":
        starts = np.cumsum(rng.exponential(1 / model.numbers[0], len(recorded)))
        return lambda offsets: starts
    order = rng.permutation(len(recorded))
    return lambda offsets: _concurrent_starts(int(model.numbers[0]), order, offsets)


def _concurrent_starts(slots: int, order: IntArray, offsets: list[FloatArray]) -> FloatArray:
    """The next session starts when one ends; at first, slots open one by one.

    Opening them evenly over a mean session keeps all of them from growing in step.
    """
    mean = float(np.mean([times[-1] for times in offsets]))
    # No more places than sessions are ever taken.
    free = np.arange(min(slots, len(offsets))) * (mean / slots)
    starts = np.empty(len(offsets))
    for session in order.tolist():
        slot = int(np.argmin(free))
        starts[session] = free[slot]
        free[slot] += offsets[session][-1]
    return starts


def _offsets(model: Timing, recorded: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Seconds from the start of a session to each of its turns."""
    count = len(recorded) - 1
    if model.name == "recorded":
        gaps = np.maximum(0, np.diff(recorded))
        if model.numbers:
            gaps = np.minimum(gaps, model.numbers[0])
    elif model.name == "fixed":
        gaps = np.full(count, model.numbers[0])
    elif model.name == "lognormal":
        gaps = rng.lognormal(np.log(model.numbers[0]), model.numbers[1], count)
    else:
        gaps = rng.exponential(model.numbers[0], count)
    return np.concatenate(([0.0], np.cumsum(gaps)))


def _sentences(arrival: Timing, gap: Timing, seed: int) -> tuple[str, str]:
    starts = {
        "recorded": "Sessions start at their recorded times.",
        "all-at-once": "All sessions start at once.",
        "poisson": f"Sessions start as a Poisson process, {_number(arrival)} a second "
        f"(seed {seed}).",
        "concurrent": f"Sessions run {_number(arrival)} at a time in random order (seed {seed}), "
        "the next starting when one ends.",
    }
    gaps = {
        "recorded": "Times between the turns of a session are as recorded"
        + (f", idle gaps capped at {_number(gap)} s." if gap.numbers else "."),
        "fixed": f"Turns of a session follow each other after {_number(gap)} s.",
        "lognormal": f"Times between turns are log-normal, {_number(gap)} s in the median"
        + (f", sigma {gap.numbers[1]:g} (seed {seed})." if len(gap.numbers) > 1 else ""),
        "exponential": f"Times between turns are exponential, {_number(gap)} s in the mean "
        f"(seed {seed}).",
    }
    return starts[arrival.name], gaps[gap.name]


def _number(model: Timing) -> str:
    return f"{model.numbers[0]:g}" if model.numbers else ""

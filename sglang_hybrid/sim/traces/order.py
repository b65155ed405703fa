"""Requests of a trace in another order, or only some of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sglang_hybrid.sim.trace import FloatArray, IntArray, Trace


def reorder(trace: Trace, order: IntArray, arrival: FloatArray) -> Trace:
    """The requests ``order`` of ``trace``, which arrive at ``arrival``.

    A request whose parent is left out or comes later continues the nearest of the
    parent's ancestors that comes earlier, and takes the symbols between over.
    """
    if len(order) == len(trace) and np.array_equal(order, np.arange(len(trace))):
        return replace(trace, arrival=arrival)
    place = np.full(len(trace) + 1, len(trace), dtype=np.int64)
    place[order] = np.arange(len(order))
    own: list[IntArray] = []
    parents = np.full(len(order), -1, dtype=np.int64)
    keeps = np.zeros(len(order), dtype=np.int64)
    for index, request in enumerate(order.tolist()):
        symbols, parent, keep = _difference(trace, request, place, index)
        own.append(symbols)
        if parent >= 0:
            parents[index], keeps[index] = place[parent], keep
    session, names = _renumbered(trace.session[order], trace.session_names)
    return replace(
        trace,
        symbols=np.concatenate(own) if own else trace.symbols[:0],
        offsets=np.concatenate(([0], np.cumsum([len(symbols) for symbols in own]))).astype(
            np.int64
        ),
        parent=parents,
        keep=keeps,
        input_len=trace.input_len[order],
        output_len=trace.output_len[order],
        arrival=arrival,
        session=session,
        system_len=trace.system_len[order],
        session_names=names,
    )


def without_long(trace: Trace, max_input_tokens: int) -> Trace:
    """Sessions end before their first prompt over the limit; so do lone requests.

    Raises:
        ValueError: nothing is left.
    """
    long = trace.input_len > max_input_tokens
    if not long.any():
        return trace
    first_long = np.full(int(trace.session.max()) + 2, len(trace), dtype=np.int64)
    for request in np.flatnonzero(long)[::-1]:
        first_long[trace.session[request]] = request
    first_long[-1] = len(trace)  # requests without a session
    kept = np.flatnonzero(~long & (np.arange(len(trace)) < first_long[trace.session]))
    if not len(kept):
        raise ValueError(f"no request of {trace.name!r} has a prompt of {max_input_tokens} tokens")
    return reorder(trace, kept, trace.arrival[kept])


def _difference(
    trace: Trace, request: int, place: IntArray, index: int
) -> tuple[IntArray, int, int]:
    """Own symbols, parent (by its old number) and keep of ``request`` at its new place."""
    symbols = trace.symbols[trace.offsets[request] : trace.offsets[request + 1]]
    parent, keep = int(trace.parent[request]), int(trace.keep[request])
    while parent >= 0 and place[parent] >= index:
        inherited = int(trace.keep[parent])
        between = trace.symbols[trace.offsets[parent] : trace.offsets[parent + 1]]
        symbols = np.concatenate((between[: max(0, keep - inherited)], symbols))
        parent, keep = int(trace.parent[parent]), min(keep, inherited)
    return symbols, parent, keep


def _renumbered(session: IntArray, names: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """Sessions numbered by first appearance."""
    numbers: dict[int, int] = {-1: -1}
    for old in session.tolist():
        numbers.setdefault(old, len(numbers) - 1)
    renumbered = np.array([numbers[old] for old in session.tolist()], dtype=np.int64)
    kept = [names[old] if old < len(names) else str(old) for old in numbers if old >= 0]
    return renumbered, tuple(kept)

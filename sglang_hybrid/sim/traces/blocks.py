"""Sequences of chained blocks: an id stands for a block and everything before it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sglang_hybrid.sim.trace import IntArray, TraceBuilder

LOOKAHEAD = 4
CONTINUED = (
    "Outputs are not recorded: a request whose blocks are continued by a later, longer one (among "
    f"the next {LOOKAHEAD} that share them) is taken to have produced that continuation; all other "
    "outputs are unique."
)
UNIQUE = "Outputs are not recorded and taken to be unique."


@dataclass(frozen=True)
class BlockRequest:
    """A request by the ids of the full blocks of its prompt."""

    time: float
    input_len: int
    output_len: int
    blocks: IntArray


def granularity(width: int) -> str:
    """The assumption of a trace of blocks."""
    return f"Prefixes are known in blocks of {width} tokens; what lies inside a block is not."


def renumbered(requests: Sequence[BlockRequest]) -> list[BlockRequest]:
    """The same with ids from 0 on, whatever the hashes were."""
    if not requests:
        return []
    ends = np.cumsum([len(request.blocks) for request in requests])
    _, ids = np.unique(np.concatenate([r.blocks for r in requests]), return_inverse=True)
    parts = np.split(ids.astype(np.int64), ends[:-1])
    return [replace(r, blocks=part) for r, part in zip(requests, parts, strict=True)]


def full_sequences(
    requests: Sequence[BlockRequest], width: int, outputs: str
) -> tuple[list[IntArray], int]:
    """Symbols of inputs and outputs, and the first number above all of them.

    A block that the ids do not cover, be it the partial end of a prompt or the output,
    is that of a later request that continues this one, else a number of its own.
    """
    fresh = max((int(r.blocks.max()) for r in requests if len(r.blocks)), default=-1) + 1
    sequences: list[IntArray] = [np.empty(0, dtype=np.int64)] * len(requests)
    successors = _successors(requests) if outputs == "continued" else {}
    # From the last to the first: a continuation includes the output of its own request.
    for index in range(len(requests) - 1, -1, -1):
        request = requests[index]
        known = request.blocks
        wanted = -(-(request.input_len + request.output_len) // width)
        if index in successors:
            known = np.concatenate((known, sequences[successors[index]][len(known) : wanted]))
        missing = wanted - len(known)
        sequences[index] = np.concatenate((known, np.arange(fresh, fresh + missing)))
        fresh += missing
    return sequences, fresh


def _successors(requests: Sequence[BlockRequest]) -> dict[int, int]:
    """The request that continues another, by index."""
    visits = _visits_of_ends(requests)
    successors = {}
    for index, request in enumerate(requests):
        if not len(request.blocks):
            continue
        visitors = visits[int(request.blocks[-1])]
        first = bisect_right(visitors, index)
        for later in visitors[first : first + LOOKAHEAD]:
            candidate = requests[later]
            if (
                candidate.time > request.time
                and candidate.input_len >= request.input_len + request.output_len
                and len(candidate.blocks) > len(request.blocks)
            ):
                successors[index] = later
                break
    return successors


def _visits_of_ends(requests: Sequence[BlockRequest]) -> dict[int, list[int]]:
    """For blocks in which prompts end, the requests that contain them, in order."""
    lengths = [len(request.blocks) for request in requests]
    blocks = np.concatenate([request.blocks for request in requests])
    owners = np.repeat(np.arange(len(requests)), lengths)
    ends = np.unique([request.blocks[-1] for request in requests if len(request.blocks)])
    hit = np.isin(blocks, ends)
    visits: dict[int, list[int]] = defaultdict(list)
    for block, owner in zip(blocks[hit].tolist(), owners[hit].tolist(), strict=True):
        visits[block].append(owner)
    return visits


class ChainedBuilder:
    """Adds sequences of chained symbols to a trace; stores what no request had before.

    Symbols are small numbers from 0 on.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        # By symbol: the request that had it first (-1: none), and the symbol before it.
        self._first = np.full(1024, -1, dtype=np.int64)
        self._before = np.full(1024, -1, dtype=np.int64)

    def add(
        self,
        sequence: IntArray,
        input_len: int,
        output_len: int,
        *,
        session: str | None = None,
        arrival: float | None = None,
        system_len: int | None = None,
    ) -> None:
        """Add a request by its full sequence.

        Raises:
            ValueError: lengths that the symbols do not cover, or symbols that follow
                different prefixes.
        """
        self._grow(int(sequence.max(initial=0)) + 1)
        before = np.concatenate(([-1], sequence[:-1]))
        keep = self._known(sequence, before)
        index = self.builder.add_difference(
            sequence[keep:],
            input_len,
            output_len,
            parent=int(self._first[sequence[keep - 1]]) if keep else -1,
            keep=keep,
            session=session,
            arrival=arrival,
            system_len=system_len,
        )
        self._first[sequence[keep:]] = index
        self._before[sequence[keep:]] = before[keep:]

    def _known(self, sequence: IntArray, before: IntArray) -> int:
        """How many leading symbols requests had before."""
        known = self._first[sequence] >= 0
        keep = int(np.argmin(np.append(known, False)))
        astray = known & (self._before[sequence] != before)
        astray[keep:] |= known[keep:]
        new = sequence[keep:]
        if astray.any() or len(np.unique(new)) < len(new):
            raise ValueError("the ids are no chain: one of them follows different prefixes")
        return keep

    def _grow(self, symbols: int) -> None:
        missing = symbols - len(self._first)
        if missing > 0:
            more = np.full(max(missing, len(self._first)), -1, dtype=np.int64)
            self._first = np.concatenate((self._first, more))
            self._before = np.concatenate((self._before, more))

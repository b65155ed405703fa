"""What passes between the server and its shadow process. Both ends are this package."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.hit_density import DensityTable, new_table
from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.ring import MAX_PAGES, MAX_REQUESTS
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.tuning import Arm

Objective = Literal["flops", "tokens"]

WINDOW, RESET, SEARCH = b"W", b"R", b"S"
_HEAD = struct.Struct("<cII")  # kind, generation, number


@dataclass(frozen=True)
class Settings:
    """What the shadow caches are.

    Attributes:
        costs: of the served model, on the rank that records.
        admission: of the served cache; arms may narrow it.
        budget: the server's pools.
        arms: one shadow each.
        objective: what is summed up: FLOPs saved, or tokens hit.
        is_bootstrap: only collect windows, until a search is asked for.
        max_requests, max_pages: of the history, see `Ring`.
    """

    costs: ModelCosts
    admission: Admission
    budget: Budget
    arms: tuple[Arm, ...]
    objective: Objective = "flops"
    is_bootstrap: bool = False
    max_requests: int = MAX_REQUESTS
    max_pages: int = MAX_PAGES

    def to_bytes(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def from_bytes(data: bytes) -> Settings:
        settings = pickle.loads(data)
        if not isinstance(settings, Settings):
            raise ValueError(f"settings are a {type(settings).__name__}")
        return settings


@dataclass(frozen=True)
class Report:
    """What became of one window, or of a search over all windows.

    Attributes:
        generation: resets before it; reports of earlier generations are void.
        number: of the window, from 0.
        saved: per arm, FLOPs saved or tokens hit in the window; in a search, in all windows.
            Empty where windows are only collected.
        realised: the same of the real cache, from the hits in the records.
        hits: tokens hit per arm, whatever `saved` counts.
        tables: of arms that learn densities, by index, see `table_to_bytes`.
        seconds: time that the shadows took.
        is_search: whether it answers a search.
        error: why the window was left out; empty if it was not.
    """

    generation: int
    number: int
    saved: tuple[float, ...]
    realised: float
    hits: tuple[int, ...] = ()
    tables: dict[int, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    is_search: bool = False
    error: str = ""

    def to_bytes(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def from_bytes(data: bytes) -> Report:
        report = pickle.loads(data)
        if not isinstance(report, Report):
            raise ValueError(f"a report is a {type(report).__name__}")
        report.check()
        return report

    def check(self) -> None:
        """What follows from it must not fail later, in the scheduler.

        Raises:
            ValueError: a field is not of its type, or a table of another size.
        """
        numbers = (*self.saved, *self.hits, self.generation, self.number, self.realised)
        if not all(isinstance(each, int | float) for each in (*numbers, self.seconds)):
            raise ValueError("a report has something else than numbers")
        for arm, table in self.tables.items():
            if not isinstance(arm, int) or not isinstance(table, bytes):
                raise ValueError("a report has tables that are none")
            table_from_bytes(table)


def window_message(window: Window, generation: int, number: int) -> bytes:
    return _HEAD.pack(WINDOW, generation, number) + window.to_bytes()


def control_message(kind: bytes, generation: int) -> bytes:
    """`RESET` or `SEARCH`."""
    return _HEAD.pack(kind, generation, 0)


def parse(message: bytes) -> tuple[bytes, int, int, memoryview]:
    """Kind, generation, number, and the rest of a message to the process."""
    kind, generation, number = _HEAD.unpack_from(message)
    return kind, generation, number, memoryview(message)[_HEAD.size :]


def table_to_bytes(table: DensityTable) -> bytes:
    return bytes(table.cells.tobytes() + table.events.tobytes())


def table_from_bytes(data: bytes) -> DensityTable:
    """What `table_to_bytes` made; the arrays are read-only.

    Raises:
        ValueError: of another size.
    """
    like = new_table()
    size = like.cells.nbytes
    if len(data) != size + like.events.nbytes:
        raise ValueError(f"a table of densities of {len(data)} bytes")
    cells = np.frombuffer(data[:size], np.float64).reshape(like.cells.shape)
    return DensityTable(cells, np.frombuffer(data[size:], np.int64))

"""Cells of a comparison, side by side in processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from tqdm import tqdm

from sglang_hybrid.sim.cells import BoundCell, Cell, CellError, run_cell
from sglang_hybrid.sim.results import Row
from sglang_hybrid.sim.workload import Workload

_SOON_DONE = 100_000
"""Requests to replay, in all, that take less time than starting processes."""

_BOUND_REPLAYS = 50
"""A bound takes as long as so many replays."""

_load: Workload | None = None  # of a worker process


def run_cells(
    load: Workload,
    cells: Sequence[Cell],
    *,
    workers: int | None = None,
    progress: bool = False,
) -> list[Row]:
    """The rows of ``cells``, in their order.

    Args:
        workers: processes; None: as many as there are CPUs, or none for little work.
        progress: show a bar on stderr, if that is a terminal.

    Raises:
        CellError: the first cell that failed, by its name.
        ValueError: fewer than one worker.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"{workers} workers are not allowed; allowed: an integer from 1")
    if not cells:
        return []
    processes = min(workers or _sensible_workers(load, cells), len(cells) - 1)
    with tqdm(
        total=len(cells),
        unit="replay",
        file=sys.stderr,
        leave=False,
        disable=None if progress else True,
    ) as bar:
        # Here, even with workers: what is not yet compiled should be compiled once.
        here = cells if processes <= 1 else cells[:1]
        rows = []
        for cell in here:
            rows.append(run_cell(load, cell))
            bar.update()
        if len(here) < len(cells):
            rows += _in_processes(load, cells[1:], processes, bar)
    return rows


def _sensible_workers(load: Workload, cells: Sequence[Cell]) -> int:
    replays = sum(_BOUND_REPLAYS if isinstance(cell, BoundCell) else 1 for cell in cells)
    if replays * len(load) < _SOON_DONE:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(
    load: Workload, cells: Sequence[Cell], processes: int, bar: tqdm[None]
) -> list[Row]:
    pool = ProcessPoolExecutor(
        processes,
        # Forked, a worker would inherit locks that other threads hold at that moment.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_receive,
        initargs=(load,),
    )
    try:
        with _without_main_module():
            futures = [pool.submit(_run_here, cell) for cell in cells]
        for future in futures:
            future.add_done_callback(lambda _: bar.update())
        return [_row(future, cell) for future, cell in zip(futures, cells, strict=True)]
    finally:
        pool.shutdown(cancel_futures=True)


def _row(future: Future[Row], cell: Cell) -> Row:
    try:
        return future.result()
    except BrokenProcessPool:
        raise CellError(
            f"{cell}: a worker process ended, perhaps for want of memory; use fewer workers"
        ) from None


def _receive(load: Workload) -> None:
    global _load
    _load = load


def _run_here(cell: Cell) -> Row:
    assert _load is not None
    return run_cell(_load, cell)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Processes that are started meanwhile do not run the caller's script again.

    They need nothing of it, and a script without `if __name__ == "__main__"` would start
    its comparison anew in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

"""What one prefill forward saves: states inside its rows and states at their ends.

The scheduler plans a forward's saves with its batch (`adapter.saving`); the layers write
them while the forward runs (`adapter.saving_layers`). Slots and indices stay on the
device, and nothing here waits for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.utils import is_pin_memory_available
from torch import Tensor

from sglang_hybrid.adapter.guards import Guard
from sglang_hybrid.adapter.state_copies import copy_states, is_plain
from sglang_hybrid.core.chunk_plan import ChunkPlan
from sglang_hybrid.kernels.scatter_checkpoints import scatter_checkpoints

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    from sglang_hybrid.adapter.stops import StopCopies


class ForwardSaves:
    """The saves of one forward.

    Args:
        pool: SGLang's request pool, which knows the state pool.
        plan: filled by whoever builds the batch, before `begin`.
        guard: of the saving of states; a forward whose saves fail goes on without them.

    Attributes:
        noted: what a hook inside the running layer has for the hook around it.
        rows, ends: (n,) int64 on the device: row and flattened position of each state.
        chunks, starts, lengths: (n,) int64: the chunk state each goes on from, the
            first token behind it and how many follow.
        turns: indices of states of which no two belong to the same row.
        back: (n,) int64: where each state is when the turns lie one after another.
    """

    rows: Tensor
    ends: Tensor
    chunks: Tensor
    starts: Tensor
    lengths: Tensor
    turns: tuple[Tensor, ...]
    back: Tensor
    _targets: Tensor
    _ends: tuple[Tensor, Tensor]

    def __init__(self, pool: HybridReqToTokenPool, plan: ChunkPlan, guard: Guard) -> None:
        self.plan = plan
        self._guard = guard
        self.noted: Any = None
        self._pool = pool
        self._slots: list[Tensor] = []
        self._end_sources: list[Tensor] = []
        self._end_slots: list[Tensor] = []
        self._layers_written = 0
        self._ends_written = False

    # ---- built with the batch ----

    def add_inside(self, slot: Tensor) -> None:
        """The slot, int64 of shape [1], of the next state of the plan."""
        self._slots.append(slot)

    def add_end(self, running: Tensor, slot: Tensor) -> None:
        """Copy what is in slot ``running`` when the forward ends; both of shape [1]."""
        self._end_sources.append(running)
        self._end_slots.append(slot)

    def seal(self) -> None:
        """All is added: read the slots now, before a request's buffer changes."""
        if self._slots:
            self._targets = torch.cat(self._slots)
        if self._end_slots:
            self._ends = torch.cat(self._end_sources), torch.cat(self._end_slots)

    def __bool__(self) -> bool:
        return bool(self._slots or self._end_slots)

    # ---- while the forward runs ----

    def attempt(self) -> AbstractContextManager[None]:
        """A context for what may fail: then this forward saves no states inside rows."""
        return self._guard.on_device(_Active.clear)

    def take_noted(self) -> Any:
        noted, self.noted = self.noted, None
        return noted

    @property
    def has_inside(self) -> bool:
        return bool(self._slots)

    def begin(self) -> None:
        """Bring the plan to the device, in one copy."""
        plan, count = self.plan, len(self.plan)
        assert count == len(self._slots), (count, len(self._slots))
        lengths = [end - start for end, start in zip(plan.ends, plan.starts, strict=True)]
        turns = plan.turns()
        order = [index for turn in turns for index in turn]
        back = sorted(range(count), key=order.__getitem__)
        columns = (
            *(plan.rows, plan.ends, plan.chunks, plan.starts, lengths, plan.window_index),
            *(order, back),
        )
        values = [value for column in columns for value in column] + plan.window_rows
        device = self._targets.device
        packed = torch.tensor(
            values, dtype=torch.int64, pin_memory=is_pin_memory_available(device)
        ).to(device, non_blocking=True)
        on_device = packed[: len(columns) * count].view(len(columns), count).unbind()
        self.rows, self.ends, self.chunks, self.starts, self.lengths = on_device[:5]
        self._window_index, order, self.back = on_device[5:]
        self.turns = order.split([len(turn) for turn in turns])
        self._window_rows = packed[len(columns) * count :]
        self._targets = self._rows(_used(self._targets))

    def windows_before(self, conv_pool: Tensor, running: Tensor) -> Tensor | None:
        """The convolution states, before the layer, of rows that need them.

        Args:
            conv_pool: (slots, dim, window).
            running: (rows,) slot of each row's running state.

        Returns:
            (rows that need it, dim, window), or None where no row does.
        """
        if not self.plan.window_rows:
            return None
        return conv_pool[running[self._window_rows].long()]

    def write_layer(
        self,
        conv_pool: Tensor,
        ssm_pool: Tensor,
        query_start_loc: Tensor,
        inputs: Tensor,
        states: Tensor,
        windows: Tensor | None,
    ) -> None:
        """Write one layer's states and convolution windows to their slots.

        Args:
            inputs: (tokens, dim) what the layer's convolution was given.
            states: (n, *state) after the tokens before `ends`.
            windows: of `windows_before`.
        """
        scatter_checkpoints(
            conv_pool,
            ssm_pool,
            inputs,
            query_start_loc,
            self.rows,
            self.ends,
            self._targets,
            states,
            windows,
            self._window_index,
        )
        self._layers_written += 1

    def copy_ends(self) -> None:
        """The forward has run: copy the running states."""
        if not self._end_slots:
            return
        sources, targets = map(_used, self._ends)
        if is_plain(self._pool):
            everywhere = torch.ones(len(sources), dtype=torch.bool, device=sources.device)
            copy_states(self._pool, sources, targets, everywhere)
        else:  # a copy through temporaries, so one state at a time
            sources, targets = map(self._rows, (sources, targets))
            # A slot that was freed meanwhile has no row: row 0 takes what nobody reads.
            targets = targets.where((sources >= 0) & (targets >= 0), 0)
            sources = sources.clamp_min(0)
            for source, target in zip(sources.split(1), targets.split(1), strict=True):
                self._pool.mamba_pool.copy_from(source, target)
        self._ends_written = True

    def _rows(self, slots: Tensor) -> Tensor:
        """Where ``slots`` are now, which they may not have been when the batch was built."""
        rows: Tensor = self._pool.translate_mamba_indices(slots)
        return rows

    # ---- afterwards ----

    @property
    def inside_written(self) -> bool:
        """Whether every state layer has written; a forward replayed from a graph has not."""
        return self._layers_written == len(self._pool.mamba_map)

    @property
    def ends_written(self) -> bool:
        return self._ends_written


def _used(tensor: Tensor) -> Tensor:
    """``tensor``, of the scheduler's stream, which the running one reads from now on."""
    if tensor.device.type != "cpu":
        tensor.record_stream(torch.get_device_module(tensor.device).current_stream())
    return tensor


class _Active:
    """The saves of the forward that runs; SGLang runs one at a time per process."""

    saves: ForwardSaves | None = None

    @classmethod
    def clear(cls) -> None:
        cls.saves = None


def active() -> ForwardSaves | None:
    """The saves inside rows that the running forward has to write; mostly None."""
    return _Active.saves


@dataclass(frozen=True)
class Task:
    """What our hooks do in one forward, besides SGLang's.

    Attributes:
        saves: what it saves of prefills.
        stops: copies before stop tokens, where rows decode that may have ended.
        decoding: how many rows, the last ones, decode.
    """

    saves: ForwardSaves | None
    stops: StopCopies | None
    decoding: int


def attach(forward_batch: Any, _cls: type, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Hook after `ForwardBatch.init_new`: hand a batch's task to its forward, once."""
    saves = batch.__dict__.pop("hybrid_saves", None)
    saver, decoding = getattr(batch.tree_cache, "saver", None), 0
    stops = None if saver is None else saver.stops
    if stops is not None and batch.forward_mode.is_decode():
        decoding = len(batch.reqs)
    elif stops is not None and batch.forward_mode.is_mixed():
        decoding = len(batch.decoding_reqs)
    if saves is not None or decoding:
        forward_batch.hybrid_task = Task(saves, stops, decoding)


def forward(original: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around `ModelRunner.forward`."""
    task: Task | None = getattr(forward_batch, "hybrid_task", None)
    if task is None:
        return original(runner, forward_batch, *args, **kwargs)
    if task.stops is not None and task.decoding:
        task.stops.before(forward_batch, task.decoding)
    saves = task.saves
    if saves is None:
        return original(runner, forward_batch, *args, **kwargs)
    if saves.has_inside:
        with saves.attempt():
            saves.begin()
            _Active.saves = saves
    try:
        result = original(runner, forward_batch, *args, **kwargs)
    finally:
        _Active.clear()
    with saves.attempt():
        saves.copy_ends()
    return result

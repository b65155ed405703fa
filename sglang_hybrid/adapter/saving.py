"""Plans which states the next prefill forward saves, and takes their slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import _MambaRadixCacheV2TrackEntry
from sglang.srt.runtime_context import get_schedule
from torch import Tensor

from sglang_hybrid.adapter.forward_saves import ForwardSaves
from sglang_hybrid.adapter.state_copies import is_plain
from sglang_hybrid.adapter.stops import StopCopies
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.chunk_plan import ChunkPlan
from sglang_hybrid.core.places import places_in
from sglang_hybrid.core.track_plan import on_page

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    from sglang_hybrid.adapter.cache import HybridMarconiCache

NEVER = 1 << 40
"""A decode interval that no sequence reaches."""


@dataclass(frozen=True)
class Family:
    """How a linear-attention family returns states inside a row.

    Attributes:
        name: key of `hooks.LAYERS`.
        chunk_tokens: grid of the chunk states that its prefill kernel returns.
        window_tokens: inputs that a convolution state holds.
    """

    name: str
    chunk_tokens: int
    window_tokens: int


_NO_STATES_INSIDE = Family("none", 1, 0)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that a running request has had saved and has not handed over.

    Attributes:
        slot: its slot, int64 of shape [1].
        forward: the forward that writes it.
    """

    depth: int
    kind: Kind
    slot: Tensor
    forward: ForwardSaves


@dataclass(frozen=True)
class Tail:
    """The state that a forward leaves in a request's tracking slot.

    Attributes:
        is_end: whether it lies at the end of the row.
    """

    depth: int
    forward: ForwardSaves
    is_end: bool

    @property
    def is_written(self) -> bool:
        return self.forward.ends_written if self.is_end else self.forward.inside_written


_Planned = dict[int, list["Req"]]
"""Requests of a batch that save a state, by depth."""


class Saver:
    """Has the prefill forwards of one cache save states at exactly the wanted tokens.

    What it plans stands on the requests: `hybrid_saved` (states inside the prefill, each
    in a slot of its own, until they are handed over or given back) and, under
    ``extra_buffer``, the state at the end in the request's tracking slot, as SGLang
    has it (`mamba_last_track_seqlen`).

    Args:
        family: None where the model's kernels cannot return states inside a row; then
            only states at the end of a forward can be saved.
        cuts: whether a prefill is cut at wanted checkpoints, so that they are its end.

    Attributes:
        stops: copies of states before stop tokens; None where no step beyond them runs.
    """

    def __init__(
        self,
        cache: HybridMarconiCache,
        params: CacheInitParams,
        family: Family | None,
        *,
        cuts: bool,
    ) -> None:
        self._cache = cache
        self._guard = cache.guards.saving
        self._family = family
        self.cuts = cuts
        pool = params.req_to_token_pool
        self.stops: StopCopies | None = None
        # On larger pages decode saves the states that the tree can name.
        if (
            params.enable_mamba_extra_buffer
            and params.page_size == 1
            and not get_schedule().disable_overlap_schedule
            and is_plain(pool)
        ):
            self.stops = StopCopies(pool, self._guard)

    @property
    def mode(self) -> str:
        return "split" if self.cuts else "exact"

    def prepare(self, batch: ScheduleBatch) -> None:
        """Plan ``batch``'s forward; its requests have their own slots already."""
        if self._guard.is_on:
            with self._guard:
                self._prepare(batch)
                return
        if self.stops is not None:
            self.stops.give_up()
        for req in batch.reqs:
            # What was planned stays unwritten; the state at the end must not pass for one.
            req.hybrid_tail = req.kv.mamba_last_track_seqlen = None

    def _prepare(self, batch: ScheduleBatch) -> None:
        if self.stops is not None:
            self.stops.note(batch)
        family = self._family or _NO_STATES_INSIDE
        plan = ChunkPlan(chunk_tokens=family.chunk_tokens, window_tokens=family.window_tokens)
        saves = ForwardSaves(self._cache.req_to_token_pool, plan, self._guard)
        planned: _Planned = {}
        for req in batch.reqs:
            depths = [*self._save_wanted(saves, req, planned), *self._save_tail(saves, req)]
            plan.add_row(req.extend_len, [depth - req.prefix_len for depth in depths])
        if saves:
            saves.seal()
            batch.hybrid_saves = saves

    def _save_wanted(self, saves: ForwardSaves, req: Req, planned: _Planned) -> list[int]:
        """Take slots for what is wanted inside ``req``'s row; returns the depths."""
        cache, tail = self._cache, on_page(req.extend_end, self._cache.page_size)
        wanted = () if req.skip_radix_cache_insert else cache.wanted.of(req)
        places, rounded = places_in(wanted, req.prefix_len, req.extend_end, cache.page_size)
        cache.counters.rounded_checkpoints += rounded
        req.mamba_branching_seqlen = None
        if places and places[-1][0] == tail:
            req.mamba_branching_seqlen, req.hybrid_branch_kind = places.pop()
        if self._family is None:
            return []
        depths, req.hybrid_saved = [], list(saved_of(req))
        for depth, kind in places:
            # Requests that run side by side may want the same: one of them saves it.
            if any(_shares(req, other, depth) for other in planned.setdefault(depth, [])):
                continue
            slot = cache.take_checkpoint_slot(req, depth)
            if slot is not None:
                planned[depth].append(req)
                # At once: the next slot's eviction must find this one with its request.
                req.hybrid_saved.append(Saved(depth, kind, slot, saves))
                saves.add_inside(slot)
                depths.append(depth)
        return depths

    def _save_tail(self, saves: ForwardSaves, req: Req) -> list[int]:
        """Save the end of ``req``'s row to its tracking slot; returns the depth if inside."""
        kv, depth = req.kv, self._tail_depth(req)
        if depth is None or not self._cache.enable_mamba_extra_buffer:
            return []
        slot = kv.mamba_ping_pong_track_buffer[kv.mamba_last_track_idx].view(1)
        is_end = depth == req.extend_end
        req.hybrid_tail = Tail(depth, saves, is_end)
        if is_end:
            saves.add_end(kv.mamba_pool_idx.view(1), slot)
            return []
        saves.add_inside(slot)
        return [depth]

    def track_tail(self, req: Req) -> _MambaRadixCacheV2TrackEntry:
        """In place of SGLang's tracking, which has its own grid: the same bookkeeping."""
        kv, depth = req.kv, self._tail_depth(req)
        index, pool = kv.mamba_next_track_idx, self._cache.req_to_token_pool
        if depth is not None:
            kv.mamba_last_track_idx, kv.mamba_last_track_seqlen = index, depth
            if not pool.enable_mamba_extra_buffer_lazy:
                kv.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(index)
        return _MambaRadixCacheV2TrackEntry(track_mask=False, track_position=index, track_seqlen=-1)

    def _tail_depth(self, req: Req) -> int | None:
        """The last token of ``req``'s row at which a state can be saved and named."""
        depth: int = on_page(req.extend_end, self._cache.page_size)
        if not self._guard.is_on:
            return None
        can_save = depth == req.extend_end or self._family is not None
        return depth if can_save and depth > req.prefix_len else None


def saved_of(req: Req) -> list[Saved]:
    """What ``req`` has had saved and still holds."""
    return getattr(req, "hybrid_saved", [])


def _shares(req: Req, other: Req, depth: int) -> bool:
    return (
        req.extra_key == other.extra_key
        and req.cache_salt == other.cache_salt
        # Of requests that are equally deep by chance, this spares copying the prefixes.
        and req.full_untruncated_fill_ids[depth - 1] == other.full_untruncated_fill_ids[depth - 1]
        and req.full_untruncated_fill_ids[:depth] == other.full_untruncated_fill_ids[:depth]
    )


# ---- hooks into SGLang ----


def track_entry(original: Any, batch: Any, req: Any) -> Any:
    """Hook around `ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend`."""
    return batch.tree_cache.saver.track_tail(req)


def prepare_for_extend(_result: None, batch: Any) -> None:
    """Hook after `ScheduleBatch.prepare_for_extend`."""
    batch.tree_cache.saver.prepare(batch)


def track_grid(original: Any, tree_page: int) -> int:
    """Hook around `mamba_track_grid`: decode saves states on pages, if it has to at all."""
    return decode_grid(tree_page)


def decode_grid(page_size: int) -> int:
    """Tokens between two states that decode saves.

    A sequence hands over its running state when it ends, which the tree can name where
    every token is a page; then decode has nothing to save before.
    """
    return page_size if page_size > 1 else NEVER

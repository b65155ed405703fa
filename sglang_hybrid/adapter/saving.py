"""Plans which states the next prefill forward saves, and takes their slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import _MambaRadixCacheV2TrackEntry
from torch import Tensor

from sglang_hybrid.adapter.forward_saves import ForwardSaves
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.track_plan import TrackPlan, on_page, places_in

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
        name: for logs and metrics.
        chunk_tokens: grid of the chunk states that its prefill kernel returns.
    """

    name: str
    chunk_tokens: int


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
        self._family = family
        self.cuts = cuts
        conv = params.req_to_token_pool.mamba_pool.mamba_cache.conv
        self._window_tokens = conv[0].shape[-1] if conv else 0

    @property
    def mode(self) -> str:
        return "split" if self.cuts else "exact"

    def prepare(self, batch: ScheduleBatch) -> None:
        """Plan ``batch``'s forward; its requests have their own slots already."""
        chunk_tokens = 1 if self._family is None else self._family.chunk_tokens
        plan = TrackPlan(chunk_tokens, self._window_tokens)
        saves = ForwardSaves(self._cache.req_to_token_pool, plan)
        planned: _Planned = {}
        for req in batch.reqs:
            depths = [*self._save_wanted(saves, req, planned), *self._save_tail(saves, req)]
            plan.add_row(req.extend_len, [depth - req.prefix_len for depth in depths])
        if saves:
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
        saved = []
        for depth, kind in places:
            # Requests that run side by side may want the same: one of them saves it.
            if any(_shares(req, other, depth) for other in planned.setdefault(depth, [])):
                continue
            slot = cache.take_checkpoint_slot(req, depth)
            if slot is not None:
                planned[depth].append(req)
                saved.append(Saved(depth, kind, slot, saves))
                saves.add_inside(slot)
        req.hybrid_saved = saved_of(req) + saved
        return [each.depth for each in saved]

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

"""What a request's states become: checkpoints of the tree, or free slots again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from sglang_hybrid.adapter.saving import NEVER, saved_of
from sglang_hybrid.adapter.wanted import known_pages
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.pages import Hashes

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True)
class Pending:
    """A checkpoint that the insert under way attaches.

    ``slot`` is None for the one whose slot SGLang's parameters carry; ``req`` is set where
    it is the tail of a running request, see `_settle_tail`.
    """

    depth: int
    kind: Kind
    turn: int = 0
    slot: Tensor | None = None
    req: Req | None = None


class RequestCheckpoints:
    """Mixin before SGLang's MAMBA component: what is attached when a request is inserted."""

    def __init__(self, cache, params):
        super().__init__(cache, params)
        self._pending: list[Pending] = []
        self._kept_tail: int | None = None
        self._pages: Hashes | None = None

    def prepare_for_caching_req(self, req, insert_params, token_ids_len, is_finished):
        prepare = self._prepare_finished if is_finished else self._prepare_unfinished
        length = prepare(req, insert_params, token_ids_len)
        self._pages = known_pages(req)
        return length

    def _prepare_finished(self, req, insert_params, token_ids_len):
        """A finished request hands over the state it holds: no slot is needed."""
        self.cache.on_finished(req, token_ids_len)
        self._pending = self._take_saved(req, token_ids_len)
        self._drop_unwritten_tail(req)
        if token_ids_len < req.kv.cache_protected_len:
            # --strip-thinking-cache keeps less than what a retracted request, whose
            # output was prefilled, has put into the tree already.
            return 0
        depth = self._hand_over(req, insert_params, token_ids_len)
        prompt_end = min(self.cache.prefill_target(req), token_ids_len)
        self._settle_tail(req, has_later=depth > prompt_end)
        if depth == 0:
            insert_params.mamba_value = None
            is_cached = req.kv.cache_protected_len > prompt_end - self.cache.page_size
            return 0 if is_cached and not self._pending else prompt_end
        is_branch = depth == req.mamba_branching_seqlen
        kind = req.hybrid_branch_kind if is_branch else Kind.DECODE_END
        self._pending.append(Pending(depth, kind, req.hybrid_turn))
        return max(depth, prompt_end)

    def _hand_over(self, req, insert_params, token_ids_len):
        """Have SGLang hand over the deepest state that ``req`` holds; returns its depth or 0."""
        kv, cache = req.kv, self.cache
        is_whole = token_ids_len == kv.kv_committed_len
        if not cache.enable_mamba_extra_buffer:
            # With --strip-thinking-cache less is kept than was computed, and there is
            # only the state of all that was computed.
            if not is_whole:
                return 0
            return super().prepare_for_caching_req(req, insert_params, token_ids_len, True)
        stops = None if cache.saver is None else cache.saver.stops
        is_copied = stops is not None and stops.has_copy(req)
        if is_whole and is_copied:
            kv.mamba_last_track_idx, kv.mamba_last_track_seqlen = stops.SLOT, token_ids_len - 1
        elif is_whole and cache.saver is not None and token_ids_len % cache.page_size == 0:
            self._track_running_state(req, token_ids_len)
        elif is_copied or self._is_overwritten(req):
            return 0
        return super().prepare_for_caching_req(req, insert_params, token_ids_len, True)

    def _track_running_state(self, req, depth):
        """Let ``req``'s running state be its tracked one: the slots change places.

        It stands for ``depth`` tokens when all that was launched has run, a step beyond
        the request's last token included.
        """
        kv, pool = req.kv, self.cache.req_to_token_pool
        index = kv.mamba_ping_pong_empty.index(False)
        running, kv.mamba_pool_idx = (
            kv.mamba_pool_idx,
            kv.mamba_ping_pong_track_buffer[index].clone(),
        )
        pool.set_mamba_ping_pong_slot(req, index, running)
        kv.mamba_last_track_idx, kv.mamba_last_track_seqlen = index, depth

    def _take_saved(self, req, length):
        """The checkpoints that ``req``'s prefill has saved in its first ``length`` tokens.

        What no forward wrote is dropped.
        """
        pending = []
        for saved in saved_of(req):
            if saved.depth > length:
                self._free_mamba_value(saved.slot)
            elif saved.forward.inside_written:
                pending.append(Pending(saved.depth, saved.kind, req.hybrid_turn, saved.slot))
            else:
                self.cache.counters.unwritten_checkpoints += 1
                self._free_mamba_value(saved.slot)
        req.hybrid_saved = []
        return pending

    def _drop_unwritten_tail(self, req):
        """Forget a state that a forward was to leave in ``req``'s tracking slot and did not."""
        tail, req.hybrid_tail = getattr(req, "hybrid_tail", None), None
        if tail is not None and not tail.is_written:
            self.cache.counters.unwritten_checkpoints += 1
            req.kv.mamba_last_track_seqlen = None

    def _is_overwritten(self, req):
        """Whether a decode step in flight writes the slot that would be handed over.

        With the overlap schedule a step may run beyond the request's last token. If it
        tracks a state, SGLang has turned `mamba_next_track_idx` away from its slot
        already, so that the index equals that of the last state; else they share a slot.
        """
        kv, pool = req.kv, self.cache.req_to_token_pool
        if pool.mamba_ping_pong_track_buffer_size != 2 or pool.enable_mamba_extra_buffer_lazy:
            return False
        in_flight = kv.kv_committed_len >= len(req.origin_input_ids) + len(req.output_ids)
        return (
            in_flight
            and kv.kv_committed_len % self.mamba_track_grid == 0
            and kv.mamba_next_track_idx != kv.mamba_last_track_idx
        )

    def _turn_track_index(self, req):
        """Keep the first decode step's tracked state apart from the next one.

        That step runs already when the prefill's result comes in. SGLang turns the index
        of the tracking slot one result ahead of each tracked step, but not ahead of the
        first: the step one interval later would then overwrite the last state in flight.
        """
        kv, pool = req.kv, self.cache.req_to_token_pool
        if (
            kv.mamba_next_track_idx is not None
            and not pool.enable_mamba_extra_buffer_lazy
            and kv.kv_committed_len > req.extend_end
            and kv.kv_committed_len % self.mamba_track_grid == 0
        ):
            kv.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(kv.mamba_next_track_idx)

    def _settle_tail(self, req, has_later):
        """What became of the state that the forward kept near the end of ``req``'s prompt.

        It is the sequence's last checkpoint unless the answer got one of its own; then
        it is the end of a prompt like any other.
        """
        node_id = getattr(req, "hybrid_tail_node", None)
        if node_id in self.cache.view.checkpoints:
            kind = Kind.PROMPT_END if has_later else Kind.DECODE_END
            self.cache.view.reclassify(self.tree_core.node_by_id(node_id), kind)

    def _prepare_unfinished(self, req, insert_params, token_ids_len):
        """A request still running gives a copy (or its tracked slot) for a fresh slot."""
        config, tracked = self.cache.config, self.cache.enable_mamba_extra_buffer
        self._drop_unwritten_tail(req)
        rest = self.cache.prefill_target(req) - token_ids_len
        is_middle = rest > 0
        # What is left of the prompt may be too short for the forward to keep a state.
        is_last = tracked and rest < self.cache.checkpoint_grid
        depth = (req.kv.mamba_last_track_seqlen or 0) if tracked else token_ids_len
        if depth == req.mamba_branching_seqlen:
            kind, setting = req.hybrid_branch_kind, "always"
        elif is_last and self.mamba_track_grid != NEVER:
            kind, setting = Kind.DECODE_END, config.prompt_end
        elif is_middle:
            kind, setting = Kind.CHUNK, config.chunk_boundary
        else:
            kind, setting = Kind.PROMPT_END, config.prompt_end
        slot = self.admit(req, setting, depth) if depth else None
        # Only now: an eviction for that slot must find the saved ones with their request.
        self._pending = self._take_saved(req, token_ids_len)
        if slot is not None and not tracked and not self._copy_running_state(req, slot):
            slot = None
        if slot is None:
            if is_last and depth:
                # It stays in the request's own buffer, to be handed over at the end.
                self._kept_tail = depth
            saved = max((pending.depth for pending in self._pending), default=0)
            return saved if is_middle else token_ids_len
        pool = self.cache.req_to_token_pool
        if tracked:
            insert_params.mamba_value = pool.donate_mamba_ping_pong_slot(req, slot)
        else:
            insert_params.mamba_value = slot
        is_tail = is_last and kind == Kind.DECODE_END
        tail_of = req if is_tail else None
        self._pending.append(Pending(depth, kind, req.hybrid_turn, req=tail_of))
        return depth if is_middle else token_ids_len

    def _copy_running_state(self, req, slot) -> bool:
        """Copy ``req``'s state to ``slot``; else give the slot back and return False."""
        pool = self.cache.req_to_token_pool
        with self.cache.guards.saving.on_device(lambda: self._free_mamba_value(slot)):
            pool.mamba_pool.copy_from(
                pool.translate_mamba_indices(req.kv.mamba_pool_idx.unsqueeze(0)),
                pool.translate_mamba_indices(slot),
            )
            return True
        return False

    def admit(self, req, setting, depth):
        """A slot for a new checkpoint, or None if it is not worth one or none can be had."""
        counters, view = self.cache.counters, self.cache.view
        if setting == "never" or (setting != "always" and not self.cache.takes_first_victims):
            counters.unwanted_checkpoints += 1
            return None
        evict = (
            setting == "always"
            or view.has_first_victims()
            or view.beats_victim(depth, self.tree_core.node_by_id(req.last_node))
        )
        slot = self._take_slot(evict)
        if slot is None and not evict:
            counters.declined_checkpoints += 1
        elif slot is None:
            counters.skipped_checkpoints += 1
        return slot

    def _take_slot(self, evict: bool):
        """One state slot, int64 of shape [1]; None if there is none."""
        allocator = self.cache.req_to_token_pool.mamba_allocator
        slot = allocator.alloc(1)
        if slot is None and evict:
            self.cache.evict_for_state()
            slot = allocator.alloc(1)
        return slot

    def cleanup_after_caching_req(self, req, is_finished, insert_result=None, insert_params=None):
        # What was not inserted goes back: an insert may decline, an abort never asks.
        slots = [each.slot for each in self._pending if each.slot is not None]
        if is_finished:
            slots += [saved.slot for saved in saved_of(req)]
            req.hybrid_saved = []
        for slot in slots:
            self._free_mamba_value(slot)
        self._pending, self._pages = [], None
        super().cleanup_after_caching_req(req, is_finished, insert_result, insert_params)
        if not is_finished and self.cache.enable_mamba_extra_buffer:
            self._turn_track_index(req)
        if self._kept_tail is not None:
            req.kv.mamba_last_track_seqlen, self._kept_tail = self._kept_tail, None

"""Admission to prefill: cuts at branch points, and state slots counted beforehand."""

from __future__ import annotations

import dataclasses

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder


class HybridPrefillAdder(PrefillAdder):
    """SGLang's prefill admission for a `HybridMarconiCache`.

    Where the forward saves the wanted states, admission is SGLang's. Where it cannot, a
    prefill that passes a wanted checkpoint is cut there and goes on as a chunked
    request. A pass of the scheduler can leave only one request unfinished: another that
    needs a cut (or does not fit whole) waits for the next pass. Where the forward keeps
    one state on a grid, chunks end on that grid.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if (shared := self.tree_cache.shared) is not None:
            # SGLang leaves out what victims of the other kind would give.
            self.rem_mamba_slots += shared.slots_of_kv()
            tokens = shared.tokens_of_states()
            self.memory_budget.total_offset -= tokens
            self.memory_budget.current_offset -= tokens

    @property
    def _cuts(self) -> bool:
        saver = self.tree_cache.saver
        # Without chunked prefill nothing could go on with the rest.
        return saver is not None and saver.cuts and self.rem_chunk_tokens is not None

    def add_one_req(self, req, *args, **kwargs):
        result = super().add_one_req(req, *args, **kwargs)
        admitted = bool(self.can_run_list) and self.can_run_list[-1] is req
        if not admitted and req.kv.holds_mamba and not req.kv.holds_kv:
            self._give_back_copy(req)
        return result

    def _give_back_copy(self, req):
        """Free the slot for the copy of the hit of ``req``, which has to wait.

        SGLang does so too, but for requests of a session: these would keep the slot in the
        queue, and take it with them when one of higher priority drives them out of it.
        """
        kv = req.kv
        self.tree_cache.req_to_token_pool.mamba_allocator.free(kv.mamba_pool_idx.unsqueeze(-1))
        kv.mamba_pool_idx = kv.mamba_cow_src_index = None
        kv.mamba_needs_clear = False

    def _select_prefill_admission(
        self, req, *, truncation_align_size, has_chunked_req=False, **kwargs
    ):
        counters = self.tree_cache.counters
        if not self._has_state_slots(req):
            counters.slot_waits += 1
            return AddReqResult.NO_TOKEN
        if self.tree_cache.keeps_one_state and truncation_align_size is None:
            # A chunk that ends off the grid would put later branch points off it too.
            grid = self.tree_cache.checkpoint_grid
            if self.rem_chunk_tokens is not None and self.rem_chunk_tokens >= grid:
                truncation_align_size = grid
        admission = super()._select_prefill_admission(
            req,
            truncation_align_size=truncation_align_size,
            has_chunked_req=has_chunked_req,
            **kwargs,
        )
        if isinstance(admission, AddReqResult):
            return admission
        has_unfinished = has_chunked_req or self.new_chunked_req is not None
        if not self._cuts:
            # A chunk that ends on the grid leaves tokens of the pass to those behind it.
            return AddReqResult.OTHER if admission.is_chunked and has_unfinished else admission
        branch = self.tree_cache.plan_chunk(req)
        cut = (
            branch is not None
            and admission.prefix_len < branch < admission.prefix_len + admission.extend_len
        )
        if (cut or admission.is_chunked) and has_unfinished:
            counters.branch_waits += 1
            return AddReqResult.OTHER
        if cut:
            counters.branch_cuts += 1
            admission = dataclasses.replace(
                admission,
                extend_len=branch - admission.prefix_len,
                max_new_tokens=0,
                is_chunked=True,
            )
        return admission

    def _commit_prefill_admission(self, req, admission, mamba_gap_reserve):
        super()._commit_prefill_admission(req, admission, mamba_gap_reserve)
        if self.tree_cache.keeps_one_state:
            self.tree_cache.plan_chunk(req, req.extend_end)
        self.tree_cache.counters.prefill_passes += 1
        self.tree_cache.on_admitted(req)

    def add_chunked_req(self, req):
        cache, branch = self.tree_cache, None
        if self._cuts and (branch := cache.plan_chunk(req)) is not None:
            limit = branch - req.prefix_len
            if self.chunked_req_limit is None or limit < self.chunked_req_limit:
                self.chunked_req_limit = limit
        if cache.keeps_one_state:
            self.mamba_chunk_grid = cache.checkpoint_grid
        waiting = len(self.can_run_list)
        rest = super().add_chunked_req(req)
        cache.counters.prefill_passes += len(self.can_run_list) - waiting
        if cache.keeps_one_state:
            cache.plan_chunk(req, req.extend_end)
        elif branch is not None and branch == req.extend_end:
            cache.counters.branch_cuts += 1
        return rest

    def _has_state_slots(self, req) -> bool:
        """Whether the slots of this pass's new requests, ``req`` included, can be had."""
        pool = self.tree_cache.req_to_token_pool
        needed = 0
        for each in (*self.can_run_list, req):
            needed += not each.kv.holds_mamba
            if pool.enable_mamba_extra_buffer and each.kv.mamba_ping_pong_track_buffer is None:
                needed += pool.mamba_initial_tracking_slots
        spare = self.tree_cache.free_state_slots() - needed
        self.tree_cache.host.spare_slots = spare
        return spare >= 0 and (self.tree_cache.shared is None or self._shares_fit(req, needed))

    def _shares_fit(self, req, slots) -> bool:
        """Whether KV and ``slots`` of this pass, ``req`` included, fit into shared memory."""
        cache = self.tree_cache
        extend = len(req.full_untruncated_fill_ids) - req.prefix_len
        if self.rem_chunk_tokens is not None:
            extend = min(extend, self.rem_chunk_tokens)
        lengths = [each.extend_len for each in self.can_run_list] + [extend]
        tokens = sum(self.ceil_paged_tokens(length) + self.page_size for length in lengths)
        return cache.shared.has_room(tokens, slots, cache.slots_set_aside)


def adder_class(original: type[PrefillAdder]) -> type[PrefillAdder]:
    """The class to build instead of ``original``, SGLang's or another plugin's."""
    if original is PrefillAdder:
        return HybridPrefillAdder
    return type("HybridPrefillAdder", (HybridPrefillAdder, original), {})

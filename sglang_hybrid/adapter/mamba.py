"""MAMBA component: which states are kept, at which token, and which go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import EvictLayer, MambaComponent
from sglang.srt.runtime_context import mamba_track_grid
from sglang.srt.utils.rank_consensus_checker import assert_same
from torch import Tensor

from sglang_hybrid.adapter.saving import NEVER, decode_grid, saved_of
from sglang_hybrid.adapter.view_driven import ViewDriven
from sglang_hybrid.adapter.wanted import known_pages
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.pages import Hashes
from sglang_hybrid.core.track_plan import on_page

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True)
class _Pending:
    """A checkpoint that the insert under way attaches.

    ``slot`` is None for the one whose slot SGLang's parameters carry; ``req`` is set where
    it is the tail of a running request, see `_settle_tail`.
    """

    depth: int
    kind: Kind
    turn: int = 0
    slot: Tensor | None = None
    req: Req | None = None


class HybridMambaComponent(ViewDriven, MambaComponent):
    """SGLang's MAMBA component with Marconi's admission and our victim order.

    A state is attached at the depth at which it was taken, which may lie inside
    the inserted key: the KV of a prompt enters the tree whole when its prefill
    ends, whether or not a state is kept there.
    """

    def __init__(self, cache, params):
        super().__init__(cache, params)
        if cache.keeps_one_state:
            self.mamba_track_grid = mamba_track_grid(params.page_size)
        else:
            self.mamba_track_grid = decode_grid(params.page_size)
        self._pending: list[_Pending] = []
        self._kept_tail: int | None = None
        self._pages: Hashes | None = None

    # ---- branch points ----

    def finalize_match_result_in_tree_core(self, result, params, value_chunks, best_value_len):
        result = super().finalize_match_result_in_tree_core(
            result, params, value_chunks, best_value_len
        )
        hit, kv_hit = result.device_prefix_len, result.full_kv_hit_length
        branch = self.reachable_depth(hit, kv_hit)
        if branch - hit < self.cache.config.min_gain_tokens:
            branch = None
        elif self.cache.keeps_one_state and self._only_continues(result):
            # The forward keeps one state. At the end of the previous turn it would leave
            # a conversation a turn behind for ever; the end of this prompt is worth more.
            branch = None
        return result._replace(mamba_branching_seqlen=branch)

    def _only_continues(self, result) -> bool:
        """Whether the request goes on where a leaf ends: nothing diverges there."""
        node_id = result.last_visited_node_id
        return node_id is not None and not self.tree_core.node_by_id(node_id).children

    def reachable_depth(self, start: int, depth: int) -> int:
        """The deepest token up to ``depth`` at which a prefill from ``start`` can keep a state.

        Any that the tree can name; where the forward keeps one state, those of a grid
        that begins at ``start``, the first token it computes.
        """
        if not self.cache.keeps_one_state:
            return on_page(depth, self.cache.page_size)
        return depth - (depth - start) % self.mamba_checkpoint_grid

    def finalize_match_result_in_cache(self, params, result):
        """Copy-on-write of the matched state; without a slot the hit is given up."""
        if params.req is not None:
            kind = Kind.DECODE_END if self._only_continues(result) else Kind.BRANCH
            self.cache.note_match(params.req, result, params.key, kind)
        if (
            params.cow_mamba
            and not params.req.kv.holds_mamba
            and self.tree_core.get_component_device_value(
                result.best_match_node, self.component_type
            )
            is not None
        ):
            lock = self.cache.lock(result.best_match_node)
            slot = self._take_slot(evict=True)
            self.cache.unlock(lock)
            if slot is None:
                self.cache.counters.missed_copies += 1
                self.cache.explainer.gave_up(params.req)
                return self.tree_core.empty_match_result
            params.req.kv.mamba_pool_idx = slot[0]
        return super().finalize_match_result_in_cache(params, result)

    # ---- checkpoints of a request ----

    def prepare_for_caching_req(self, req, insert_params, token_ids_len, is_finished):
        prepare = self._prepare_finished if is_finished else self._prepare_unfinished
        length = prepare(req, insert_params, token_ids_len)
        self._pages = known_pages(req)
        return length

    def _prepare_finished(self, req, insert_params, token_ids_len):
        """A finished request hands over the state it holds: no slot is needed."""
        self.cache.on_finished(req, token_ids_len)
        self._pending = self._take_saved(req)
        self._drop_unwritten_tail(req)
        depth = self._hand_over(req, insert_params, token_ids_len)
        prompt_end = min(self.cache.prefill_target(req), token_ids_len)
        self._settle_tail(req, has_later=depth > prompt_end)
        if depth == 0:
            insert_params.mamba_value = None
            is_cached = req.kv.cache_protected_len > prompt_end - self.cache.page_size
            return 0 if is_cached and not self._pending else prompt_end
        is_branch = depth == req.mamba_branching_seqlen
        kind = req.hybrid_branch_kind if is_branch else Kind.DECODE_END
        self._pending.append(_Pending(depth, kind, req.hybrid_turn))
        return max(depth, prompt_end)

    def _hand_over(self, req, insert_params, token_ids_len):
        """Have SGLang hand over the deepest state that ``req`` holds; returns its depth or 0."""
        is_whole = token_ids_len == req.kv.kv_committed_len
        if not self.cache.enable_mamba_extra_buffer:
            # With --strip-thinking-cache less is kept than was computed, and there is
            # only the state of all that was computed.
            if not is_whole:
                return 0
        elif self.cache.saver is not None and is_whole and not token_ids_len % self.cache.page_size:
            self._track_running_state(req, token_ids_len)
        elif self._is_overwritten(req):
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

    def _take_saved(self, req):
        """The checkpoints that ``req``'s prefill has saved; what no forward wrote is dropped."""
        pending = []
        for saved in saved_of(req):
            if saved.forward.inside_written:
                pending.append(_Pending(saved.depth, saved.kind, req.hybrid_turn, saved.slot))
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
        self._pending = self._take_saved(req)
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
            pool.mamba_pool.copy_from(
                pool.translate_mamba_indices(req.kv.mamba_pool_idx.unsqueeze(0)),
                pool.translate_mamba_indices(slot),
            )
            insert_params.mamba_value = slot
        is_tail = is_last and kind == Kind.DECODE_END
        tail_of = req if is_tail else None
        self._pending.append(_Pending(depth, kind, req.hybrid_turn, req=tail_of))
        return depth if is_middle else token_ids_len

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
            self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slot = allocator.alloc(1)
        return slot

    def commit_insert_component_data(self, node, is_new_leaf, params, result, cache_actions):
        pending, self._pending = self._pending, []
        view = self.cache.view
        if is_new_leaf:
            view.grow(node)
        if params.mamba_value is None:
            result.mamba_exist = True  # there is no slot to keep
        elif not pending:  # inserted by somebody else than a request
            pending = [_Pending(view.depth_of(node), Kind.DECODE_END)]
        for each in pending:
            slot = params.mamba_value if each.slot is None else each.slot
            if self._attach(node, each, slot, cache_actions):
                continue
            if each.slot is None:
                result.mamba_exist = True
            else:
                self._free_mamba_value(slot)

    def _attach(self, node, pending, slot, cache_actions):
        """Attach a checkpoint on ``node``'s path; False if the tree has that state already."""
        view = self.cache.view
        holder = self._node_at(node, pending.depth, cache_actions)
        if pending.req is not None:
            pending.req.hybrid_tail_node = holder.id
        if holder.component_data[self.component_type].value is not None:
            view.renew(holder, pending.kind)
            return False
        self.tree_core.set_component_device_value(holder.id, self.component_type, slot)
        view.attach(holder, pending.kind, pending.depth, pending.turn)
        self.cache.explainer.places.taken(holder, pending.depth, self._pages)
        self.cache.counters.count_checkpoint(pending.kind)
        return True

    def _node_at(self, node, depth, cache_actions):
        """The node on ``node``'s path that ends at ``depth`` tokens, split off if need be."""
        view = self.cache.view
        while view.depth_of(node.parent) >= depth:
            node = node.parent
        if view.depth_of(node) > depth:
            length = depth - view.depth_of(node.parent)
            node, action = self.tree_core._split_node(node.key, node, length)
            if action is not None:
                cache_actions.append(action)
        assert view.depth_of(node) == depth, (view.depth_of(node), depth)
        return node

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

    # ---- eviction ----

    def evict_component(
        self, node, device_frees, host_frees, cache_actions, target=EvictLayer.DEVICE
    ):
        cache, checkpoint = self.cache, self.cache.view.checkpoints.get(node.id)
        freed = super().evict_component(node, device_frees, host_frees, cache_actions, target)
        if freed[0]:
            cache.view.detach(node)
            cache.counters.evicted_states += freed[0]
            if checkpoint is not None:
                cache.counters.evicted_unused += not checkpoint.hits
                cache.explainer.places.evicted(node, checkpoint.depth)
        return freed

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        victim = self.cache.view.state_victim()
        if victim is None:
            return None
        assert_same("hybrid-marconi evicts the state of node %d", victim.id)
        self.cache.counters.count_state_victim(self.cache.view.tree.live_children(victim))
        # The KV stays until the KV pool needs it: of a leaf as evidence for branch points.
        self.tree_core._evict_component_and_detach_lru(
            victim,
            self,
            device_frees,
            host_frees,
            cache_actions,
            target=EvictLayer.DEVICE,
            tracker=tracker,
        )
        return None

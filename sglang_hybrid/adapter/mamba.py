"""MAMBA component: which states are kept, at which token, and which go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import EvictLayer, MambaComponent
from sglang.srt.runtime_context import mamba_track_grid
from sglang.srt.utils.rank_consensus_checker import assert_same

from sglang_hybrid.adapter.view_driven import ViewDriven
from sglang_hybrid.core.checkpoints import Kind

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


@dataclass(frozen=True)
class _Pending:
    """The checkpoint that the insert under way attaches.

    ``req`` is set where it is the tail of a running request, see `_settle_tail`.
    """

    depth: int
    kind: Kind
    turn: int = 0
    req: Req | None = None


class HybridMambaComponent(ViewDriven, MambaComponent):
    """SGLang's MAMBA component with Marconi's admission and our victim order.

    A state is attached at the depth at which it was taken, which may lie inside
    the inserted key: the KV of a prompt enters the tree whole when its prefill
    ends, whether or not a state is kept there.
    """

    def __init__(self, cache, params):
        super().__init__(cache, params)
        self.mamba_track_grid = mamba_track_grid(params.page_size)
        self._pending: _Pending | None = None
        self._kept_tail: int | None = None

    # ---- branch points ----

    def finalize_match_result_in_tree_core(self, result, params, value_chunks, best_value_len):
        result = super().finalize_match_result_in_tree_core(
            result, params, value_chunks, best_value_len
        )
        hit, kv_hit = result.device_prefix_len, result.full_kv_hit_length
        branch = self.reachable_depth(hit, kv_hit)
        if branch - hit < self.cache.config.min_gain_tokens:
            branch = None
        elif self.cache.enable_mamba_extra_buffer and self._only_continues(result):
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

        Under ``no_buffer`` the prefill can be cut anywhere; otherwise the forward
        keeps states on a grid that begins at ``start``, the first token it computes.
        """
        if not self.cache.enable_mamba_extra_buffer:
            return depth
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
                return self.tree_core.empty_match_result
            params.req.kv.mamba_pool_idx = slot[0]
        return super().finalize_match_result_in_cache(params, result)

    # ---- checkpoints of a request ----

    def prepare_for_caching_req(self, req, insert_params, token_ids_len, is_finished):
        if is_finished:
            return self._prepare_finished(req, insert_params, token_ids_len)
        return self._prepare_unfinished(req, insert_params, token_ids_len)

    def _prepare_finished(self, req, insert_params, token_ids_len):
        """A finished request hands over the state it holds: no slot is needed."""
        self.cache.on_finished(req, token_ids_len)
        depth = 0
        # With --strip-thinking-cache less is kept than was computed, and under
        # `no_buffer` there is only the state of all that was computed.
        tracked = self.cache.enable_mamba_extra_buffer
        is_sound = (
            not self._is_overwritten(req) if tracked else token_ids_len == req.kv.kv_committed_len
        )
        if is_sound:
            depth = super().prepare_for_caching_req(req, insert_params, token_ids_len, True)
        prompt_end = min(self.cache.prefill_target(req), token_ids_len)
        self._settle_tail(req, has_later=depth > prompt_end)
        if depth == 0:
            insert_params.mamba_value = None
            is_cached = req.kv.cache_protected_len > prompt_end - self.cache.page_size
            return 0 if is_cached else prompt_end
        is_branch = depth == req.mamba_branching_seqlen
        kind = req.hybrid_branch_kind if is_branch else Kind.DECODE_END
        self._pending = _Pending(depth, kind, req.hybrid_turn)
        return max(depth, prompt_end)

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
        rest = self.cache.prefill_target(req) - token_ids_len
        is_middle = rest > 0
        # What is left of the prompt may be too short for the forward to keep a state.
        is_last = tracked and rest < self.mamba_checkpoint_grid
        depth = (req.kv.mamba_last_track_seqlen or 0) if tracked else token_ids_len
        if depth == req.mamba_branching_seqlen:
            kind, setting = req.hybrid_branch_kind, "always"
        elif is_last:
            kind, setting = Kind.DECODE_END, config.prompt_end
        elif is_middle:
            kind, setting = Kind.CHUNK, config.chunk_boundary
        else:
            kind, setting = Kind.PROMPT_END, config.prompt_end
        slot = self._admit(req, setting, depth) if depth else None
        if slot is None:
            if is_last and depth:
                # It stays in the request's own buffer, to be handed over at the end.
                self._kept_tail = depth
            return 0 if is_middle else token_ids_len
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
        self._pending = _Pending(depth, kind, req.hybrid_turn, req if is_tail else None)
        return depth if is_middle else token_ids_len

    def _admit(self, req, setting, depth):
        """A slot for a new checkpoint, or None if it is not worth one or none can be had."""
        counters, view = self.cache.counters, self.cache.view
        if setting == "never" or (setting != "always" and not self.cache.takes_first_victims):
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
        pending, self._pending = self._pending, None
        view = self.cache.view
        if is_new_leaf:
            view.grow(node)
        if params.mamba_value is None:
            result.mamba_exist = True  # there is no slot to keep
            return
        if pending is None:  # inserted by somebody else than a request
            pending = _Pending(view.depth_of(node), Kind.DECODE_END)
        holder = self._node_at(node, pending.depth, cache_actions)
        if pending.req is not None:
            pending.req.hybrid_tail_node = holder.id
        if holder.component_data[self.component_type].value is not None:
            result.mamba_exist = True
            view.renew(holder, pending.kind)
            return
        self.tree_core.set_component_device_value(
            holder.id, self.component_type, params.mamba_value
        )
        view.attach(holder, pending.kind, pending.depth, pending.turn)
        self.cache.counters.count_checkpoint(pending.kind)

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
        self._pending = None
        super().cleanup_after_caching_req(req, is_finished, insert_result, insert_params)
        if not is_finished and self.cache.enable_mamba_extra_buffer:
            self._turn_track_index(req)
        if self._kept_tail is not None:
            req.kv.mamba_last_track_seqlen, self._kept_tail = self._kept_tail, None

    # ---- eviction ----

    def evict_component(
        self, node, device_frees, host_frees, cache_actions, target=EvictLayer.DEVICE
    ):
        freed = super().evict_component(node, device_frees, host_frees, cache_actions, target)
        if freed[0]:
            self.cache.view.detach(node)
            self.cache.counters.evicted_states += freed[0]
        return freed

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        victim = self.cache.view.state_victim()
        if victim is None:
            return None
        assert_same("hybrid-marconi evicts the state of node %d", victim.id)
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

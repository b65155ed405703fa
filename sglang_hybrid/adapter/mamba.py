"""MAMBA component: which states are kept, at which token, and which go first."""

from __future__ import annotations

from sglang.srt.mem_cache.unified_cache.components import EvictLayer, MambaComponent
from sglang.srt.runtime_context import mamba_track_grid
from sglang.srt.utils.rank_consensus_checker import assert_same

from sglang_hybrid.adapter.host_tier import hit_of
from sglang_hybrid.adapter.request_checkpoints import Pending, RequestCheckpoints
from sglang_hybrid.adapter.saving import decode_grid
from sglang_hybrid.adapter.tiered import TieredMamba
from sglang_hybrid.adapter.view_driven import ViewDriven
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.track_plan import on_page


class HybridMambaComponent(RequestCheckpoints, TieredMamba, ViewDriven, MambaComponent):
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

    # ---- branch points ----

    def finalize_match_result_in_tree_core(self, result, params, value_chunks, best_value_len):
        result = super().finalize_match_result_in_tree_core(
            result, params, value_chunks, best_value_len
        )
        result = self.with_host_hit(result)
        hit, kv_hit = hit_of(result), result.full_kv_hit_length
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

    # ---- insertion ----

    def commit_insert_component_data(self, node, is_new_leaf, params, result, cache_actions):
        pending, self._pending = self._pending, []
        view = self.cache.view
        if is_new_leaf:
            view.grow(node)
        if params.mamba_value is None:
            result.mamba_exist = True  # there is no slot to keep
        elif not pending:  # inserted by somebody else than a request
            pending = [Pending(view.depth_of(node), Kind.DECODE_END)]
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
        if holder is None:
            return False
        if pending.req is not None:
            pending.req.hybrid_tail_node = holder.id
        if holder.component_data[self.component_type].value is not None:
            view.renew(holder, pending.kind)
            return False
        self.tree_core.set_component_device_value(holder.id, self.component_type, slot)
        kept = self.cache.host.take(holder)
        if kept is None:
            view.attach(holder, pending.kind, pending.depth, pending.turn)
        else:  # the host has a copy of it
            view.restore(holder, kept)
            view.renew(holder, pending.kind)
        self.cache.host.owe(holder)
        self.cache.explainer.places.taken(holder, pending.depth, self._pages)
        self.cache.counters.count_checkpoint(pending.kind)
        return True

    def _node_at(self, node, depth, cache_actions):
        """The node on ``node``'s path that ends at ``depth`` tokens, split off if need be.

        None where the path is shorter: a checkpoint is dropped rather than misplaced.
        """
        depth_of = self.cache.view.depth_of
        end = depth_of(node)
        if end == depth:
            return node
        if end < depth:
            self.cache.guards.saving.failed(
                AssertionError(f"a state of {depth} tokens for a path of {end}")
            )
            return None
        while (start := depth_of(node.parent)) >= depth:
            node, end = node.parent, start
        if end > depth:
            node, action = self.tree_core._split_node(node.key, node, depth - start)
            if action is not None:
                cache_actions.append(action)
        return node

    # ---- eviction ----

    def evict_component(
        self, node, device_frees, host_frees, cache_actions, target=EvictLayer.DEVICE
    ):
        cache, checkpoint = self.cache, self.cache.view.checkpoints.get(node.id)
        freed = super().evict_component(node, device_frees, host_frees, cache_actions, target)
        if freed[0]:
            cache.view.detach(node)
            cache.counters.evicted_states += freed[0]
            if node.component_data[self.component_type].host_value is not None:
                cache.host.keep(node, checkpoint)
                return freed
        elif freed[1]:
            checkpoint = cache.host.lose(node)
        else:
            return freed
        if checkpoint is not None:
            cache.counters.evicted_unused += not checkpoint.hits
            cache.explainer.places.evicted(node, checkpoint.depth)
        return freed

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        victim = self.cache.view.state_victim()
        if not self.cache.view.guard.is_on:
            return self._next_of_sglang(tracker, device_frees, host_frees, cache_actions)
        if victim is None:
            return None
        assert_same("hybrid-marconi evicts the state of node %d", victim.id)
        self.cache.host.save(victim)
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

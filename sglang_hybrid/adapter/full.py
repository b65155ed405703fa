"""FULL component: KV leaves go in the order of the tree view."""

from __future__ import annotations

from sglang.srt.mem_cache.unified_cache.components import FullComponent
from sglang.srt.utils.rank_consensus_checker import assert_same

from sglang_hybrid.adapter.view_driven import ViewDriven


class HybridFullComponent(ViewDriven, FullComponent):
    """SGLang's FULL component with our victim order."""

    def _evict_device_start(self, request_cnt):
        super()._evict_device_start(request_cnt)
        self._tried, self._stuck = set(), []

    def _evict_device_end(self):
        super()._evict_device_end()
        for node in self._stuck:
            self.cache.view.touch(node)

    def discard_deleted_session_leaf(self, node):
        # The one place that every deletion of a node passes.
        super().discard_deleted_session_leaf(node)
        self.cache.view.forget(node)
        self.cache.host.forget(node)
        self.cache.explainer.places.forget(node)

    def redistribute_on_node_split(self, new_parent, child):
        super().redistribute_on_node_split(new_parent, child)
        self.cache.view.split(new_parent, child)

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        view = self.cache.view
        while (victim := view.leaf_victim()) is not None and victim.id in self._tried:
            # It could not go: the host has no room, and something below it is in use.
            view.set_aside(victim)
            self._stuck.append(victim)
        if not view.guard.is_on:
            return self._next_of_sglang(tracker, device_frees, host_frees, cache_actions)
        if victim is None:
            return None
        self._tried.add(victim.id)
        assert_same("hybrid-marconi evicts leaf %d", victim.id)
        self.cache.counters.evicted_leaves += 1
        return victim.id

"""Where the host tier meets SGLang's cache and its MAMBA component."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components import (
    CacheTransferPhase,
    ComponentType,
)

from sglang_hybrid.adapter.host_tier import HostTier

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

MAMBA = ComponentType.MAMBA


class TieredCache:
    """Mixin before `UnifiedRadixCache`: reloads that may be declined, copies that are owed.

    Attributes:
        host: the host tier; set before SGLang's constructor, which resets the cache.
    """

    host: HostTier

    def init_hicache(self, server_args, params):
        super().init_hicache(server_args, params)
        self.host.watch()

    def attach_storage_backend(self, *args, **kwargs):
        return False, "hybrid-marconi has no third tier: it serves without a storage backend"

    def flush_pending_backups(self):
        if self.host.is_on:
            self.host.pay()
        super().flush_pending_backups()

    def load_back(self, node_id, mem_quota=None, req=None):
        # The state is read into a slot of the node and one of the request. SGLang asserts
        # that there are any, and further requests of the same pass count on theirs.
        is_state = self.tree_core.component_has_host_value_only(node_id, MAMBA)
        if is_state and self.host.spare_slots < 1:
            return False
        return super().load_back(node_id, mem_quota, req)

    def init_load_back(self, params):
        loaded = super().init_load_back(params)
        if loaded[0] == 0:
            self.counters.missed_reloads += 1
            self.explainer.not_reloaded(params.req)
            loaded = 0, self.components[MAMBA].start_on_device(params.req, loaded[1])
        self._check_if_strict()
        return loaded


class TieredMamba:
    """Mixin before SGLang's MAMBA component: states come back from the host."""

    def with_host_hit(self, result):
        """``result`` with all that a reload adds to the hit.

        SGLang counts KV that has a copy on the host. Between the checkpoint on the device
        and the one on the host, KV may also be on the device alone.
        """
        if not self.cache.host.is_on:
            return result
        hit = self.cache.view.depth_of(result.best_match_node)
        return result._replace(host_hit_length=hit - result.device_prefix_len)

    def commit_hicache_transfer(self, node, phase, transfers=(), **kwargs):
        super().commit_hicache_transfer(node, phase, transfers, **kwargs)
        has_state = node.component_data[self.component_type].value is not None
        if phase == CacheTransferPhase.BACKUP_HOST:
            self.cache.counters.copied_states += len(transfers)
        elif phase == CacheTransferPhase.LOAD_BACK and has_state:
            self.cache.host.reload(node)

    def start_on_device(self, req: Req, node_id: int) -> int:
        """The hit on the host is given up; ``req`` starts from the one on the device.

        SGLang copies the state of a match, which was on the host, and would start from
        KV without a state.

        Args:
            node_id: the deepest checkpoint of the match that is on the device, or the root.

        Returns:
            where ``req`` starts: ``node_id``, or the root if no slot can be had.
        """
        state = self.tree_core.get_component_device_value(node_id, self.component_type)
        if req.prefix_len > 0 and not req.kv.holds_mamba:
            slot = self._take_slot(evict=True)
            if slot is None:
                self.cache.counters.missed_copies += 1
                req.prefix_len = 0
                return self.cache.root_node_handle(req.extra_key)
            req.kv.mamba_pool_idx = slot[0]
        if req.prefix_len > 0:
            req.kv.mamba_cow_src_index = state
            req.kv.mamba_needs_clear = False
        return node_id

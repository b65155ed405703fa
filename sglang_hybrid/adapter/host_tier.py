"""Checkpoints in host memory: the second tier that ``--enable-hierarchical-cache`` adds.

SGLang's HiCache copies KV and states to the host and back, by its write policy, and
evicts on the host by its own order (least recently used). Here is what our view has to
know of it: a checkpoint whose slot is given up while the host has a copy is remembered
with its depth, kind and hits, and is the same checkpoint again once it is reloaded.
Until then it counts for nothing in the order of the device pools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.core.checkpoints import Checkpoint

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

    from sglang_hybrid.adapter.cache import HybridMarconiCache

MAMBA = ComponentType.MAMBA


def hit_of(result: MatchResult) -> int:
    """Tokens of a match that need not be computed: on the device, and to be reloaded."""
    return result.device_prefix_len + result.host_hit_length


class WatchedLeaves(set):
    """SGLang's set of evictable device leaves, which tells who joins and who leaves it.

    With a host tier a node also becomes a leaf, or ceases to be one, when nodes below it
    are demoted, reloaded, or locked while they are on the host.
    """

    def __init__(self, nodes: Iterable, touch: Callable[[UnifiedTreeNode], None]) -> None:
        super().__init__(nodes)
        self._touch = touch

    def add(self, node: UnifiedTreeNode) -> None:
        if node not in self:
            super().add(node)
            self._touch(node)

    def discard(self, node: UnifiedTreeNode) -> None:
        if node in self:
            super().discard(node)
            self._touch(node)


class HostTier:
    """What is on the host alone, and which copies are still to be made.

    Attributes:
        checkpoints: those whose only state is on the host, by node.
        spare_slots: state slots beyond those that requests of this scheduling pass need;
            a reload takes one.
    """

    def __init__(self, cache: HybridMarconiCache) -> None:
        self._cache = cache
        self.checkpoints: dict[int, Checkpoint] = {}
        self.spare_slots = 0
        # Nodes whose KV was copied before they got their state (write-through).
        self._owed: dict[int, UnifiedTreeNode] = {}

    @property
    def is_on(self) -> bool:
        """Whether SGLang has a host tier."""
        return self._cache.cache_controller is not None

    def clear(self) -> None:
        """Forget everything, as after a flush."""
        self.checkpoints.clear()
        self._owed.clear()
        if self.is_on:
            self.watch()

    def watch(self) -> None:
        """Have the view hear of changes of SGLang's device leaves."""
        tree = self._cache.tree_core
        tree.evictable_device_leaves = WatchedLeaves(
            tree.evictable_device_leaves, self._cache.view.touch
        )

    # ---- checkpoints that only the host has ----

    def keep(self, node: UnifiedTreeNode, checkpoint: Checkpoint | None) -> None:
        """``node`` gave up its slot, and the host has a copy of its state."""
        if checkpoint is not None:
            self.checkpoints[node.id] = checkpoint
        self._cache.counters.demoted_states += 1

    def take(self, node: UnifiedTreeNode) -> Checkpoint | None:
        """``node`` gets a slot again: the checkpoint that it held, None if it held none."""
        return self.checkpoints.pop(node.id, None)

    def reload(self, node: UnifiedTreeNode) -> None:
        """``node``'s state was given a slot, into which the host's copy will be read."""
        checkpoint = self.checkpoints.pop(node.id, None)
        if checkpoint is not None:  # else the order has failed, and knows of none
            self._cache.view.restore(node, checkpoint)
        self._cache.counters.reloaded_states += 1

    def lose(self, node: UnifiedTreeNode) -> Checkpoint | None:
        """The host evicted its copy; returns the checkpoint if that was the only one."""
        checkpoint = self.checkpoints.pop(node.id, None)
        if checkpoint is not None:
            self._cache.counters.host_evicted_states += 1
        return checkpoint

    # ---- copies to the host ----

    def owe(self, node: UnifiedTreeNode) -> None:
        """``node`` got a state.

        With its KV SGLang copies a state that is there by then, and later one of the
        node at which an insert ends. Ours may lie above, or come while the KV is copied.
        """
        if self.is_on and not self._cache.is_write_back and node.backuped:
            self._owed[node.id] = node

    def pay(self) -> None:
        """Copy the states that are owed to the host; a busy node's waits for the next call."""
        for key, node in list(self._owed.items()):
            data = node.component_data[MAMBA]
            if data.value is None or data.host_value is not None or not node.backuped:
                del self._owed[key]
            elif node.write_through_pending_id is None:
                del self._owed[key]
                self._cache._execute_and_commit_kv_backup(BackupKV(node_ids=[key]))

    def save(self, node: UnifiedTreeNode) -> None:
        """``node``'s state is about to lose its slot: under write-back it is copied now.

        SGLang copies it with the KV of the node, but not if that is on the host already.
        """
        cache, data = self._cache, node.component_data[MAMBA]
        if not self.is_on or not cache.is_write_back:
            return
        if data.value is not None and data.host_value is None:
            cache.backup_node_for_write_back(node.id)
            # A copy of the state alone is only queued by then, and the slot is freed next.
            cache.writing_check(write_back=True)

    def goes_at_once(self, leaf: UnifiedTreeNode) -> bool:
        """Whether ``leaf`` can be evicted without a copy to the host before."""
        return not self._cache.is_write_back or leaf.backuped

    def forget(self, node: UnifiedTreeNode) -> None:
        """``node`` leaves the tree."""
        self._owed.pop(node.id, None)

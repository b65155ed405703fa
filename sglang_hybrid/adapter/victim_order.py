"""Who goes next: the victim indexes of both pools, and what a policy makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.core.checkpoints import Checkpoint
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.density import Density
from sglang_hybrid.core.hit_density import DensityTable, class_of
from sglang_hybrid.core.live_tree import Above, LiveTree
from sglang_hybrid.core.migration import MergedIndex, PolicyIndex, merged
from sglang_hybrid.core.policies import Entry, Policy
from sglang_hybrid.core.sampling import DrawList, MergedSampledIndex, SampledIndex
from sglang_hybrid.core.tiers import (
    KV_TIERS_OF_POLICY,
    SPREAD,
    STATE_TIERS_OF_POLICY,
    KVTier,
    StateTier,
    kv_victims,
    state_victims,
)
from sglang_hybrid.core.victims import Candidates, VictimIndex

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

MAMBA = ComponentType.MAMBA

MOVED_PER_REQUEST = 64
"""Checkpoints that go over to the index of a new policy with each request."""


class VictimOrder:
    """Indexes of what may go, by state slots and by KV leaves.

    Args:
        costs: bytes and FLOPs of the loaded model.
        policy: eviction policy of both pools.
        bucket_width: see `VictimIndex`.

    Attributes:
        tree: the live part of SGLang's tree, with all checkpoints.
    """

    def __init__(self, costs: ModelCosts, policy: Policy, bucket_width: float) -> None:
        self.costs, self.policy, self.bucket_width = costs, policy, bucket_width
        # Learns only while it is in force, and keeps what it knows in between.
        self._density = policy if isinstance(policy, Density) else Density()
        self.tree_core: UnifiedTreeCore | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a flush of the tree."""
        self.clock = 0
        self.tree = LiveTree(self.costs)
        self.checkpoints = self.tree.checkpoints
        self._drawn_from = DrawList()
        self.states = state_victims(self._new_index, self.bucket_width)
        self.leaves = kv_victims(self._new_index, self.bucket_width)
        self._to_move: list[int] = []

    @property
    def drawn_from(self) -> list[int]:
        """Ids of all nodes with a checkpoint, in the order that random draws index."""
        return self._drawn_from.keys

    # ---- another policy ----

    def _put_in_force(self, policy: Policy, table: DensityTable | None) -> None:
        """Order by ``policy`` from here on; who stands in the present order moves later."""
        if isinstance(policy, Density):
            policy = self._density
            if table is not None:
                self._density.adopt(table)
        if policy is self.policy or (
            type(policy) is type(self.policy) and vars(policy) == vars(self.policy)
        ):
            return
        self.policy = policy
        kind = MergedSampledIndex if isinstance(policy, Density) else MergedIndex
        for tiers, changing in (
            (self.states, STATE_TIERS_OF_POLICY),
            (self.leaves, KV_TIERS_OF_POLICY),
        ):
            for tier in changing:
                now, new = tiers.tiers[tier], self._new_index()
                tiers.tiers[tier] = merged(now, new, self._weighed, kind)
        self._to_move = list(self._drawn_from.keys)

    def _new_index(self) -> VictimIndex | SampledIndex:
        if isinstance(self.policy, Density):
            return SampledIndex(self.policy, self._drawn_from)
        return VictimIndex(self.policy, self.bucket_width)

    def _weighed(self, key: int) -> Entry:
        """How the policy in force sees an ordinary candidate."""
        checkpoint = self.checkpoints[key]
        weight, group = self._weight(self.tree_core.node_by_id(key), self.policy)
        return checkpoint.last_use, checkpoint.depth, key, weight, group

    def _move(self) -> None:
        """Place some of those that stand in an index of an earlier policy.

        All events must be settled, or one that lost its state may still stand there.
        """
        moving = self._to_move[-MOVED_PER_REQUEST:]
        del self._to_move[-MOVED_PER_REQUEST:]
        self._place_all(self.tree_core.node_by_id(key) for key in moving if key in self.checkpoints)
        if not self._to_move:
            for tiers in (self.states, self.leaves):
                for i, index in enumerate(tiers.tiers):
                    if isinstance(index, MergedIndex):
                        assert not any(len(old) for old in index.old)
                        tiers.tiers[i] = index.new

    # ---- placing ----

    def _place_all(self, nodes: Iterable[UnifiedTreeNode]) -> None:
        """Let ``nodes`` compete where, and with the weight that, the tree says now."""
        found_above: dict[int, Above] = {}
        for node in nodes:
            self._place(node, found_above)

    def _place(self, node: UnifiedTreeNode, found_above: dict[int, Above]) -> None:
        key = node.id
        checkpoint = self.checkpoints.get(key)
        if checkpoint is None:
            self.states.discard(key)
            if node in self.tree_core.evictable_device_leaves:
                depth = self.tree.depth_of(node, self.clock)
                self.leaves.put(key, KVTier.STATELESS, 0.0, self.tree.inserted_at(node), depth)
            else:
                self.leaves.discard(key)
            return
        state_tier, kv_tier = self._tiers(node, checkpoint)
        if state_tier is None:
            self.states.discard(key)
            self.leaves.discard(key)
            return
        policy = SPREAD if state_tier == StateTier.FIRST else self.policy
        weight, group = self._weight(node, policy, found_above)
        place = (weight, checkpoint.last_use, checkpoint.depth, group)
        self.states.put(key, state_tier, *place)
        if kv_tier is None:
            self.leaves.discard(key)
        else:
            self.leaves.put(key, kv_tier, *place)

    def _tiers(
        self, node: UnifiedTreeNode, checkpoint: Checkpoint
    ) -> tuple[StateTier | None, KVTier | None]:
        """Where ``node``'s checkpoint competes, None: nowhere."""
        if node.component_data[MAMBA].lock_ref > 0:
            return None, None
        if self.tree.live_children(node) > 1:
            return StateTier.FORK, None
        first = checkpoint.is_first_victim
        kv_tier = None
        if node in self.tree_core.evictable_device_leaves:
            kv_tier = KVTier.FIRST if first else KVTier.NORMAL
        return StateTier.FIRST if first else StateTier.NORMAL, kv_tier

    def _weight(
        self,
        node: UnifiedTreeNode,
        policy: Policy,
        found_above: dict[int, Above] | None = None,
    ) -> tuple[float, int]:
        """``policy``'s weight of ``node``'s checkpoint, and its class if that matters."""
        checkpoint, facts = self.checkpoints[node.id], self.tree.facts(node, found_above)
        weight = policy.weight(
            facts.saved_flops, facts.freed_bytes, checkpoint.hits, facts.superseded
        )
        if policy is not self._density:
            return weight, 0
        return weight, self._class_of(checkpoint, facts.live_children)

    @staticmethod
    def _class_of(checkpoint: Checkpoint, live_children: int) -> int:
        return class_of(not live_children, checkpoint.hits, checkpoint.kind, checkpoint.turn)

    def _stale(self) -> dict[int, tuple]:
        """Candidates whose place is not what the tree says now. O(tree); for checks."""
        wrong = {}
        for key, checkpoint in self.checkpoints.items():
            node = self.tree_core.node_by_id(key)
            for tiers, tier in zip(
                (self.states, self.leaves), self._tiers(node, checkpoint), strict=True
            ):
                found, place = tiers.tier_of(key), None
                if found == tier and tier is not None:
                    index = _index_of(tiers.tiers[tier], key)
                    weight, group = self._weight(node, index.policy)
                    place = (checkpoint.last_use, checkpoint.depth, key, weight)
                    entry = index.entry(key)
                    is_right = entry[:4] == place and (not group or entry[4] == group)
                    found = None if is_right else entry
                    tier = None if is_right else place
                if found != tier:
                    wrong[key] = (found, tier)
        return wrong


def _index_of(index: Candidates, key: int) -> PolicyIndex:
    """The index in which ``key``'s entry is stored."""
    if isinstance(index, MergedIndex):
        return next((each for each in index.old if key in each), index.new)
    return cast(PolicyIndex, index)

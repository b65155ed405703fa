"""SGLang's radix tree as the policies see it.

Keeps, beside the tree, its live part (`LiveTree`) and two victim indexes: state slots
(MAMBA component) and KV leaves (FULL component). The components report local events
(`touch`, `attach`, `detach`, `grow`, `split`, `forget`); the nodes concerned are placed
anew when a request's checkpoint is done, at latest before the next victim is chosen: an
event is paid for once and the tree is never scanned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.adapter.live_tree import LiveTree
from sglang_hybrid.core.checkpoints import (
    BRANCHES,
    KV_TIERS_OF_POLICY,
    SPREAD,
    STATE_TIERS_OF_POLICY,
    Checkpoint,
    Kind,
    KVTier,
    StateTier,
    kv_victims,
    state_victims,
)
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.density import Density
from sglang_hybrid.core.hit_density import DensityTable, class_of
from sglang_hybrid.core.migration import MergedIndex, merged, policy_of
from sglang_hybrid.core.policies import Entry, Policy
from sglang_hybrid.core.sampling import DrawList, SampledIndex
from sglang_hybrid.core.victims import VictimIndex

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

MAMBA = ComponentType.MAMBA

# Bounds the work that matches and locks without a checkpoint can put off.
_MAX_UNSETTLED = 512

MOVED_PER_REQUEST = 64
"""Checkpoints that go over to the index of a new policy with each request."""


class TreeView:
    """Live checkpoints of a tree and the order in which they would go.

    Args:
        costs: bytes and FLOPs of the loaded model.
        policy: eviction policy of both pools.
        bucket_width: see `VictimIndex`.
        first_victims: kinds that are kept only as first victims until one is used.
    """

    def __init__(
        self,
        costs: ModelCosts,
        policy: Policy,
        bucket_width: float,
        first_victims: frozenset[Kind],
    ) -> None:
        self.costs = costs
        self.policy = policy
        self.bucket_width = bucket_width
        self.first_victims = first_victims
        # Learns only while it is in force, and keeps what it knows in between.
        self._density = policy if isinstance(policy, Density) else Density()
        self.tree_core: UnifiedTreeCore | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a flush of the tree."""
        self.clock = 0
        self.tree = LiveTree(self.costs)
        self.checkpoints = self.tree.checkpoints
        self.used_kinds: set[Kind] = set()
        self._drawn_from = DrawList()
        self.states = state_victims(self._new_index, self.bucket_width)
        self.leaves = kv_victims(self._new_index, self.bucket_width)
        self._unsettled: dict[int, UnifiedTreeNode] = {}
        self._to_move: list[int] = []

    # ---- events ----

    def tick(self) -> None:
        """A request was admitted."""
        self.clock += 1
        if self._to_move:
            self._move(MOVED_PER_REQUEST)
        if len(self._unsettled) > _MAX_UNSETTLED:
            self.settle()

    def touch(self, node: UnifiedTreeNode) -> None:
        """``node``'s locks, children or key changed."""
        if node.parent is None:
            return
        self._unsettled[node.id] = node

    def _touch_all(self, nodes: Iterable[UnifiedTreeNode]) -> None:
        for node in nodes:
            self._unsettled[node.id] = node

    def attach(self, node: UnifiedTreeNode, kind: Kind, depth: int, turn: int = 0) -> None:
        """``node`` received a state that was taken at ``depth`` tokens.

        ``turn``: that of the request that took it, see `turn_at`.
        """
        checkpoint = Checkpoint(
            depth,
            kind,
            self.costs.prefill_flops(depth),
            self.clock,
            is_first_victim=self._starts_as_first_victim(kind),
            turn=turn,
        )
        self._touch_all(self.tree.add(node, checkpoint))
        self._drawn_from.append(node.id)
        self.touch(node)

    def detach(self, node: UnifiedTreeNode) -> None:
        """``node`` lost its state."""
        if node.id not in self.checkpoints:
            return
        self._learn(node, is_hit=False)
        self.states.discard(node.id)
        self._drawn_from.remove(node.id)
        self._touch_all(self.tree.remove(node))
        self.touch(node)

    def forget(self, node: UnifiedTreeNode) -> None:
        """``node``, a leaf, is about to leave the tree."""
        self.detach(node)
        self.tree.forget(node)
        self._unsettled.pop(node.id, None)
        self.leaves.discard(node.id)
        self.touch(node.parent)

    def grow(self, leaf: UnifiedTreeNode) -> None:
        """``leaf`` was added to the tree."""
        self.tree.depth_of(leaf, self.clock)
        self.touch(leaf)
        self.touch(leaf.parent)

    def split(self, upper: UnifiedTreeNode, lower: UnifiedTreeNode) -> None:
        """``upper`` was split off above ``lower``."""
        self.tree.split(upper, lower)
        self.touch(lower)

    def consume(self, node: UnifiedTreeNode) -> None:
        """A request starts from ``node``'s state. Its ancestors are not refreshed."""
        checkpoint = self.checkpoints.get(node.id)
        if checkpoint is None:
            return
        self._learn(node, is_hit=True)
        checkpoint.hits += 1
        checkpoint.last_use = self.clock
        checkpoint.is_first_victim = False
        self.used_kinds.add(checkpoint.kind)
        self.touch(node)

    def renew(self, node: UnifiedTreeNode, kind: Kind) -> None:
        """A checkpoint of ``kind`` was asked for where ``node`` already holds one."""
        checkpoint = self.checkpoints[node.id]
        checkpoint.last_use = self.clock
        if checkpoint.is_first_victim:
            checkpoint.kind = kind
            checkpoint.is_first_victim = self._starts_as_first_victim(kind)
        self.touch(node)

    def reclassify(self, node: UnifiedTreeNode, kind: Kind) -> None:
        """``node``'s checkpoint turned out to be of ``kind``, and is in use until now."""
        checkpoint = self.checkpoints[node.id]
        if checkpoint.kind not in BRANCHES:
            checkpoint.kind = kind
            checkpoint.is_first_victim = not checkpoint.hits and self._starts_as_first_victim(kind)
        checkpoint.last_use = self.clock
        self.touch(node)

    def _starts_as_first_victim(self, kind: Kind) -> bool:
        """Once one of its kind was hit, new checkpoints of the kind are ordinary ones."""
        return kind in self.first_victims and kind not in self.used_kinds

    def _learn(self, node: UnifiedTreeNode, is_hit: bool) -> None:
        if self.policy is self._density:
            checkpoint = self.checkpoints[node.id]
            age = max(1, self.clock - checkpoint.last_use)
            row = self._class_of(checkpoint, self.tree.live_children(node))
            self._density.learn(row, age, is_hit)

    # ---- another policy ----

    def switch(
        self,
        policy: Policy,
        first_victims: frozenset[Kind],
        table: DensityTable | None = None,
    ) -> None:
        """Put ``policy`` in force from here on; what is resident stays.

        Checkpoints go over to its order a few per request, and compete by its weights
        from now on. Those that are first victims remain so; ``first_victims`` is for
        new ones.

        Args:
            policy: of a `Density` only the kind counts; the view has its own.
            table: what to go on from if ``policy`` is a `Density`, instead of what the
                view's own has learned so far. Copied.
        """
        self.first_victims = first_victims
        if isinstance(policy, Density):
            policy = self._density
            if table is not None:
                self._density.adopt(table)
        if policy is self.policy or (
            type(policy) is type(self.policy) and vars(policy) == vars(self.policy)
        ):
            return
        self.settle()
        self.policy = policy
        for tiers, changing in (
            (self.states, STATE_TIERS_OF_POLICY),
            (self.leaves, KV_TIERS_OF_POLICY),
        ):
            for tier in changing:
                tiers.tiers[tier] = merged(tiers.tiers[tier], self._new_index(), self._weighed)
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

    def _move(self, count: int) -> None:
        """Place some of those that stand in an index of an earlier policy."""
        self._to_move, moving = self._to_move[:-count], self._to_move[-count:]
        for key in moving:
            if key in self.checkpoints:
                self._place(self.tree_core.node_by_id(key))
        if not self._to_move:
            self.settle()  # what lost its state meanwhile still stands where it was
            for tiers in (self.states, self.leaves):
                for i, index in enumerate(tiers.tiers):
                    if isinstance(index, MergedIndex):
                        assert not any(len(old) for old in index.old)
                        tiers.tiers[i] = index.new

    # ---- queries ----

    def state_victim(self) -> UnifiedTreeNode | None:
        """The node whose state slot should go, or None if all are locked."""
        self.settle()
        key = self.states.victim(self.clock + 1)
        return None if key is None else self.tree_core.node_by_id(key)

    def leaf_victim(self) -> UnifiedTreeNode | None:
        """The leaf whose KV should go (its state goes with it), or None."""
        self.settle()
        key = self.leaves.victim(self.clock + 1)
        return None if key is None else self.tree_core.node_by_id(key)

    def has_first_victims(self) -> bool:
        """Whether a slot can be had without taking a checkpoint that admission asked for."""
        self.settle()
        return len(self.states.tiers[StateTier.FIRST]) > 0

    def beats_victim(self, depth: int, path: UnifiedTreeNode) -> bool:
        """Whether a new checkpoint would be worth more than the victim it displaces.

        Never under sampled densities, where a victim is not the worst of all.

        Args:
            depth: its depth, in tokens.
            path: node of its sequence from which to look for live checkpoints above it.
        """
        if self.policy is self._density:
            return False
        victim = self.state_victim()
        if victim is None:
            return False
        live_depth = self.tree.live_depth_above(path, depth)
        old = self.checkpoints[victim.id]
        new_weight = self.policy.weight(
            self.costs.saved_flops(depth, live_depth),
            self.costs.state_bytes + self.costs.kv_bytes_per_token * (depth - live_depth),
        )
        old_weight, _ = self._weight(victim, self.policy)
        heads = [(self.clock, depth, -1, new_weight, 0), (old.last_use, 0, 0, old_weight, 0)]
        new_loss, old_loss = self.policy.losses(heads, self.clock + 1)
        return new_loss > old_loss

    def turn_at(self, node: UnifiedTreeNode) -> int:
        """0, 1 or 2: how far its conversation is when a request goes on from ``node``."""
        return self.tree.turn_at(node)

    def depth_of(self, node: UnifiedTreeNode) -> int:
        """Tokens from the root to the end of ``node``."""
        return self.tree.depth_of(node, self.clock)

    # ---- placing ----

    def settle(self) -> None:
        """Place every node that an event has touched."""
        if self._unsettled:
            nodes, self._unsettled = self._unsettled, {}
            for node in nodes.values():
                self._place(node)

    def stale(self) -> dict[int, tuple]:
        """Candidates whose place is not what the tree says now. O(tree); for checks."""
        self.settle()
        wrong = {}
        for key, checkpoint in self.checkpoints.items():
            node = self.tree_core.node_by_id(key)
            for tiers, tier in zip(
                (self.states, self.leaves), self._tiers(node, checkpoint), strict=True
            ):
                found, place = tiers.tier_of(key), None
                if found == tier and tier is not None:
                    index = tiers.tiers[tier]
                    weight, group = self._weight(node, policy_of(index, key))
                    place = (checkpoint.last_use, checkpoint.depth, key, weight)
                    entry = _stored(index, key)
                    is_right = entry[:4] == place and (not group or entry[4] == group)
                    found = None if is_right else entry
                    tier = None if is_right else place
                if found != tier:
                    wrong[key] = (found, tier)
        return wrong

    def _place(self, node: UnifiedTreeNode) -> None:
        key = node.id
        checkpoint = self.checkpoints.get(key)
        if checkpoint is None:
            self.states.discard(key)
            if node in self.tree_core.evictable_device_leaves:
                depth = self.depth_of(node)
                self.leaves.put(key, KVTier.STATELESS, 0.0, self.tree.inserted_at(node), depth)
            else:
                self.leaves.discard(key)
            return
        state_tier, kv_tier = self._tiers(node, checkpoint)
        if state_tier is None:
            self.states.discard(key)
            self.leaves.discard(key)
            return
        weight, group = self._weight(node, SPREAD if state_tier == StateTier.FIRST else self.policy)
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

    def _weight(self, node: UnifiedTreeNode, policy: Policy) -> tuple[float, int]:
        """``policy``'s weight of ``node``'s checkpoint, and its class if that matters."""
        checkpoint, facts = self.checkpoints[node.id], self.tree.facts(node)
        weight = policy.weight(
            facts.saved_flops, facts.freed_bytes, checkpoint.hits, facts.superseded
        )
        if policy is not self._density:
            return weight, 0
        return weight, self._class_of(checkpoint, facts.live_children)

    @staticmethod
    def _class_of(checkpoint: Checkpoint, live_children: int) -> int:
        return class_of(not live_children, checkpoint.hits, checkpoint.kind, checkpoint.turn)


def _stored(index, key: int) -> Entry:
    """``key``'s entry as it stands in ``index``, by whatever policy."""
    if isinstance(index, MergedIndex):
        index = next(each for each in (*index.old, index.new) if key in each)
    return index.entry(key)

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

from sglang_hybrid.adapter.guards import Guard, guarded, never, nothing
from sglang_hybrid.adapter.victim_order import VictimOrder
from sglang_hybrid.core.checkpoints import BRANCHES, Checkpoint, Kind
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.hit_density import DensityTable
from sglang_hybrid.core.live_tree import LiveTree
from sglang_hybrid.core.policies import Policy
from sglang_hybrid.core.tiers import StateTier

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

# Bounds the work that matches and locks without a checkpoint can put off.
_MAX_UNSETTLED = 512


def _keys_to(_view: TreeView, node: UnifiedTreeNode) -> int:
    """Tokens from the root to the end of ``node``, counted."""
    depth = 0
    while node.parent is not None:
        depth += len(node.key)
        node = node.parent
    return depth


class TreeView(VictimOrder):
    """Live checkpoints of a tree and the order in which they would go.

    Args:
        costs: bytes and FLOPs of the loaded model.
        policy: eviction policy of both pools.
        bucket_width: see `VictimIndex`.
        first_victims: kinds that are kept only as first victims until one is used.
        guard: watches all that is called from outside.
    """

    def __init__(
        self,
        costs: ModelCosts,
        policy: Policy,
        bucket_width: float,
        first_victims: frozenset[Kind],
        guard: Guard,
    ) -> None:
        self.first_victims = first_victims
        self.guard = guard
        guard.when_off = self._give_up
        super().__init__(costs, policy, bucket_width)

    def clear(self) -> None:
        """Forget everything, as after a flush of the tree."""
        super().clear()
        self.live = dict.fromkeys(Kind, 0)  # how many of `checkpoints` are of each kind
        self.used_kinds: set[Kind] = set()
        self._unsettled: dict[int, UnifiedTreeNode] = {}

    def _give_up(self) -> None:
        """Drop all that is known: it may be wrong."""
        self.tree = LiveTree(self.costs)
        self.checkpoints = self.tree.checkpoints
        self.live = dict.fromkeys(Kind, 0)
        self._unsettled, self._to_move = {}, []

    # ---- events ----

    @guarded(nothing)
    def tick(self) -> None:
        """A request was admitted."""
        self.clock += 1
        if self._to_move:
            self._settle()
            self._move()
        if len(self._unsettled) > _MAX_UNSETTLED:
            self._settle()

    @guarded(nothing)
    def touch(self, node: UnifiedTreeNode) -> None:
        """``node``'s locks, children or key changed."""
        self._touch(node)

    def _touch(self, node: UnifiedTreeNode) -> None:
        if node.parent is not None:
            self._unsettled[node.id] = node

    def _touch_all(self, nodes: Iterable[UnifiedTreeNode]) -> None:
        for node in nodes:
            self._unsettled[node.id] = node

    @guarded(nothing)
    def attach(self, node: UnifiedTreeNode, kind: Kind, depth: int, turn: int = 0) -> None:
        """``node`` received a state that was taken at ``depth`` tokens.

        ``turn``: that of the request that took it, see `KnownEnds.turn`.
        """
        checkpoint = Checkpoint(
            depth,
            kind,
            self.costs.prefill_flops(depth),
            self.clock,
            is_first_victim=self._starts_as_first_victim(kind),
            turn=turn,
        )
        self._hold(node, checkpoint)

    @guarded(nothing)
    def restore(self, node: UnifiedTreeNode, checkpoint: Checkpoint) -> None:
        """``node`` holds the state of ``checkpoint``, which it held before."""
        self._hold(node, checkpoint)

    def _hold(self, node: UnifiedTreeNode, checkpoint: Checkpoint) -> None:
        self.live[checkpoint.kind] += 1
        self._touch_all(self.tree.add(node, checkpoint))
        self._drawn_from.append(node.id)
        self._unsettled[node.id] = node

    @guarded(nothing)
    def detach(self, node: UnifiedTreeNode) -> None:
        """``node`` lost its state."""
        if node.id in self.checkpoints:
            self._release(node)

    def _release(self, node: UnifiedTreeNode) -> None:
        self._learn(node, is_hit=False)
        self.live[self.checkpoints[node.id].kind] -= 1
        self.states.discard(node.id)
        self._drawn_from.remove(node.id)
        self._touch_all(self.tree.remove(node))
        self._touch(node)

    @guarded(nothing)
    def forget(self, node: UnifiedTreeNode) -> None:
        """``node``, a leaf, is about to leave the tree."""
        if node.id in self.checkpoints:
            self._release(node)
        self.tree.forget(node)
        self._unsettled.pop(node.id, None)
        self.leaves.discard(node.id)
        self._touch(node.parent)

    @guarded(nothing)
    def grow(self, leaf: UnifiedTreeNode) -> None:
        """``leaf`` was added to the tree."""
        self.tree.depth_of(leaf, self.clock)
        self._unsettled[leaf.id] = leaf
        self._touch(leaf.parent)

    @guarded(nothing)
    def split(self, upper: UnifiedTreeNode, lower: UnifiedTreeNode) -> None:
        """``upper`` was split off above ``lower``."""
        self.tree.split(upper, lower)
        self._touch(lower)

    @guarded(nothing)
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
        self._touch(node)

    @guarded(nothing)
    def renew(self, node: UnifiedTreeNode, kind: Kind) -> None:
        """A checkpoint of ``kind`` was asked for where ``node`` already holds one."""
        checkpoint = self.checkpoints[node.id]
        checkpoint.last_use = self.clock
        if checkpoint.is_first_victim:
            self._set_kind(checkpoint, kind)
            checkpoint.is_first_victim = self._starts_as_first_victim(kind)
        self._touch(node)

    @guarded(nothing)
    def reclassify(self, node: UnifiedTreeNode, kind: Kind) -> None:
        """``node``'s checkpoint turned out to be of ``kind``, and is in use until now."""
        checkpoint = self.checkpoints[node.id]
        if checkpoint.kind not in BRANCHES:
            self._set_kind(checkpoint, kind)
            checkpoint.is_first_victim = not checkpoint.hits and self._starts_as_first_victim(kind)
        checkpoint.last_use = self.clock
        self._touch(node)

    def _set_kind(self, checkpoint: Checkpoint, kind: Kind) -> None:
        self.live[checkpoint.kind] -= 1
        self.live[kind] += 1
        checkpoint.kind = kind

    def _starts_as_first_victim(self, kind: Kind) -> bool:
        """Once one of its kind was hit, new checkpoints of the kind are ordinary ones."""
        return kind in self.first_victims and kind not in self.used_kinds

    def _learn(self, node: UnifiedTreeNode, is_hit: bool) -> None:
        if self.policy is self._density:
            checkpoint = self.checkpoints[node.id]
            age = max(1, self.clock - checkpoint.last_use)
            row = self._class_of(checkpoint, self.tree.live_children(node))
            self._density.learn(row, age, is_hit)

    @guarded(nothing)
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
        self._settle()
        self.first_victims = first_victims
        self._put_in_force(policy, table)

    # ---- queries ----

    @guarded(_keys_to)
    def depth_of(self, node: UnifiedTreeNode) -> int:
        """Tokens from the root to the end of ``node``."""
        return self.tree.depth_of(node, self.clock)

    @guarded(nothing)
    def state_victim(self) -> UnifiedTreeNode | None:
        """The node whose state slot should go, or None if all are locked."""
        self._settle()
        key = self.states.victim(self.clock + 1)
        return None if key is None else self.tree_core.node_by_id(key)

    @guarded(nothing)
    def leaf_victim(self) -> UnifiedTreeNode | None:
        """The leaf whose KV should go (its state goes with it), or None."""
        self._settle()
        key = self.leaves.victim(self.clock + 1)
        return None if key is None else self.tree_core.node_by_id(key)

    @guarded(nothing)
    def set_aside(self, leaf: UnifiedTreeNode) -> None:
        """Name ``leaf`` no more until it is touched."""
        self.leaves.discard(leaf.id)

    @guarded(never)
    def has_first_victims(self) -> bool:
        """Whether a slot can be had without taking a checkpoint that admission asked for."""
        self._settle()
        return len(self.states.tiers[StateTier.FIRST]) > 0

    @guarded(never)
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

    # ---- placing ----

    @guarded(nothing)
    def settle(self) -> None:
        """Place every node that an event has touched."""
        self._settle()

    def _settle(self) -> None:
        if self._unsettled:
            nodes, self._unsettled = self._unsettled, {}
            self._place_all(nodes.values())

    @guarded(lambda _: {})
    def stale(self) -> dict[int, tuple]:
        """Candidates whose place is not what the tree says now. O(tree); for checks."""
        self._settle()
        return self._stale()

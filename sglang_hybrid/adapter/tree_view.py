"""SGLang's radix tree as the policies see it.

Keeps, beside the tree, one `Checkpoint` per live state and two victim indexes:
state slots (MAMBA component) and KV leaves (FULL component). The components
report local events (`touch`, `attach`, `detach`, `grow`, `forget`); the nodes
concerned are placed anew when a request's checkpoint is done, at latest before
the next victim is chosen: an event is paid for once and the tree is never scanned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.core.checkpoints import (
    BRANCHES,
    ENDS,
    SPREAD,
    Checkpoint,
    Kind,
    KVTier,
    StateTier,
    kv_victims,
    state_victims,
)
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.policies import Policy

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
        UnifiedTreeCore,
        UnifiedTreeNode,
    )

MAMBA = ComponentType.MAMBA

# Bounds the work that matches and locks without a checkpoint can put off.
_MAX_UNSETTLED = 512


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
        self.tree_core: UnifiedTreeCore | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a flush of the tree."""
        self.clock = 0
        self.checkpoints: dict[int, Checkpoint] = {}
        self.live = dict.fromkeys(Kind, 0)  # how many of `checkpoints` are of each kind
        self.used_kinds: set[Kind] = set()
        self.states = state_victims(self.policy, self.bucket_width)
        self.leaves = kv_victims(self.policy, self.bucket_width)
        # Node id -> (depth in tokens, clock at which the node was first seen).
        self._nodes: dict[int, tuple[int, int]] = {}
        self._unsettled: dict[int, UnifiedTreeNode] = {}

    # ---- events ----

    def tick(self) -> None:
        """A request was admitted."""
        self.clock += 1
        if len(self._unsettled) > _MAX_UNSETTLED:
            self.settle()

    def touch(self, node: UnifiedTreeNode) -> None:
        """``node``'s locks, children or key changed."""
        if node.parent is None:
            return
        self._unsettled[node.id] = node

    def attach(self, node: UnifiedTreeNode, kind: Kind, depth: int) -> None:
        """``node`` received a state that was taken at ``depth`` tokens."""
        flops = self.costs.prefill_flops(depth)
        first = self._starts_as_first_victim(kind)
        self.checkpoints[node.id] = Checkpoint(
            depth, kind, flops, self.clock, is_first_victim=first
        )
        self.live[kind] += 1
        self.touch(node)
        self._touch_neighbours(node)

    def detach(self, node: UnifiedTreeNode) -> None:
        """``node`` lost its state."""
        checkpoint = self.checkpoints.pop(node.id, None)
        if checkpoint is None:
            return
        self.live[checkpoint.kind] -= 1
        self.states.discard(node.id)
        self._touch_neighbours(node)
        # A leaf that stays without its state is locked, and touched when unlocked.

    def forget(self, node: UnifiedTreeNode) -> None:
        """``node``, a leaf, is about to leave the tree."""
        if len(node.parent.children) == 2:
            self._touch_neighbours(node.parent)
        key = node.id
        checkpoint = self.checkpoints.pop(key, None)
        if checkpoint is not None:
            self.live[checkpoint.kind] -= 1
            self.states.discard(key)
        self._nodes.pop(key, None)
        self._unsettled.pop(key, None)
        self.leaves.discard(key)
        self.touch(node.parent)

    def grow(self, leaf: UnifiedTreeNode) -> None:
        """``leaf`` was added to the tree."""
        self.touch(leaf)
        self.touch(leaf.parent)
        if len(leaf.parent.children) == 2:
            self._touch_neighbours(leaf.parent)

    def consume(self, node: UnifiedTreeNode) -> None:
        """A request starts from ``node``'s state. Its ancestors are not refreshed."""
        checkpoint = self.checkpoints.get(node.id)
        if checkpoint is None:
            return
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
            self._set_kind(checkpoint, kind)
            checkpoint.is_first_victim = self._starts_as_first_victim(kind)
        self.touch(node)

    def reclassify(self, node: UnifiedTreeNode, kind: Kind) -> None:
        """``node``'s checkpoint turned out to be of ``kind``, and is in use until now."""
        checkpoint = self.checkpoints[node.id]
        if checkpoint.kind not in BRANCHES:
            self._set_kind(checkpoint, kind)
            checkpoint.is_first_victim = not checkpoint.hits and self._starts_as_first_victim(kind)
        checkpoint.last_use = self.clock
        self.touch(node)

    def _set_kind(self, checkpoint: Checkpoint, kind: Kind) -> None:
        self.live[checkpoint.kind] -= 1
        self.live[kind] += 1
        checkpoint.kind = kind

    def _starts_as_first_victim(self, kind: Kind) -> bool:
        """Once one of its kind was hit, new checkpoints of the kind are ordinary ones."""
        return kind in self.first_victims and kind not in self.used_kinds

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

        Args:
            depth: its depth, in tokens.
            path: node of its sequence from which to look for live checkpoints above it.
        """
        victim = self.state_victim()
        if victim is None:
            return False
        while path.parent is not None and (
            path.id not in self.checkpoints or self.checkpoints[path.id].depth >= depth
        ):
            path = path.parent
        live_depth = self.depth_of(path)
        old = self.checkpoints[victim.id]
        new_weight = self.policy.weight(
            self.costs.saved_flops(depth, live_depth),
            self.costs.state_bytes + self.costs.kv_bytes_per_token * (depth - live_depth),
        )
        old_weight = self._weight(victim, old, self.policy)
        heads = [(self.clock, depth, -1, new_weight, 0), (old.last_use, 0, 0, old_weight, 0)]
        new_loss, old_loss = self.policy.losses(heads, self.clock + 1)
        return new_loss > old_loss

    def depth_of(self, node: UnifiedTreeNode) -> int:
        """Tokens from the root to the end of ``node``."""
        unknown = []
        while node.parent is not None and node.id not in self._nodes:
            unknown.append(node)
            node = node.parent
        depth = self._nodes[node.id][0] if node.parent is not None else 0
        for node in reversed(unknown):
            depth += len(node.key)
            self._nodes[node.id] = (depth, self.clock)
        return depth

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
        before = self.states.snapshot()
        for key in self.checkpoints:
            self._place(self.tree_core.node_by_id(key))
        after = self.states.snapshot()
        return {k: (before.get(k), now) for k, now in after.items() if before.get(k) != now}

    def _place(self, node: UnifiedTreeNode) -> None:
        key = node.id
        checkpoint = self.checkpoints.get(key)
        is_leaf = node in self.tree_core.evictable_device_leaves
        if checkpoint is None:
            self.states.discard(key)
            if is_leaf:
                depth = self.depth_of(node)
                self.leaves.put(key, KVTier.STATELESS, 0.0, self._nodes[key][1], depth)
            else:
                self.leaves.discard(key)
            return
        if node.component_data[MAMBA].lock_ref > 0:
            self.states.discard(key)
            self.leaves.discard(key)
            return
        first = checkpoint.is_first_victim
        weight = self._weight(node, checkpoint, SPREAD if first else self.policy)
        place = (weight, checkpoint.last_use, checkpoint.depth)
        if first:
            self.states.put(key, StateTier.FIRST, *place)
        else:
            fork = len(node.children) > 1
            self.states.put(key, StateTier.FORK if fork else StateTier.NORMAL, *place)
        if is_leaf:
            self.leaves.put(key, KVTier.FIRST if first else KVTier.NORMAL, *place)
        else:
            self.leaves.discard(key)

    def _weight(self, node: UnifiedTreeNode, checkpoint: Checkpoint, policy: Policy) -> float:
        """``policy``'s weight of ``node``'s checkpoint.

        The KV counted for a leaf reaches up to the nearest fork or live checkpoint:
        what lies between cannot be hit without it. SGLang gives that KV back in two
        steps, the leaf's own now and the rest as the first victim of the KV pool.
        """
        checkpoints, children = self.checkpoints, len(node.children)
        above, fork, live = node.parent, None, None
        while above.parent is not None:
            live = checkpoints.get(above.id)
            if live is not None:
                break
            if fork is None and len(above.children) > 1:
                fork = above
            above = above.parent
        saved_flops, freed_bytes = checkpoint.prefill_flops, self.costs.state_bytes
        if live is not None:
            saved_flops -= live.prefill_flops
        if not children:
            kept = self.depth_of(fork or above)
            freed_bytes += self.costs.kv_bytes_per_token * (checkpoint.depth - kept)
        superseded = checkpoint.kind in ENDS and children == 1 and self._moved_on(node)
        return policy.weight(saved_flops, freed_bytes, checkpoint.hits, superseded)

    def _moved_on(self, node: UnifiedTreeNode) -> bool:
        """Whether a later checkpoint, or a fork, follows the only child of ``node``.

        A child alone does not say so: the KV of a prompt reaches beyond its last state
        where states are kept on a grid.
        """
        while len(node.children) == 1:
            (node,) = node.children.values()
            if node.id in self.checkpoints:
                return True
        return bool(node.children)

    def _touch_neighbours(self, node: UnifiedTreeNode) -> None:
        """A state or a fork came or went at ``node``: its nearest live neighbours see it."""
        above = node.parent
        while above is not None and above.id not in self.checkpoints:
            above = above.parent
        if above is not None and self.checkpoints[above.id].kind in ENDS:
            self.touch(above)
        self._touch_live_below(node)

    def _touch_live_below(self, node: UnifiedTreeNode) -> None:
        """The nearest live checkpoints below measure their savings from ``node``."""
        below = list(node.children.values())
        while below:
            child = below.pop()
            if child.id in self.checkpoints:
                self.touch(child)
            else:
                below.extend(child.children.values())

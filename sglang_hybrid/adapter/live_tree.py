"""The live part of SGLang's radix tree: what leads to a checkpoint.

KV below the last checkpoint of a path cannot be hit. It stays as evidence for branch
points until the KV pool needs it, and counts for nothing else: it makes no fork, and a
checkpoint with only such KV below it is a leaf. Facts that policies compare are read off
the live tree, so they are those of the replay, which drops such KV at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sglang_hybrid.core.checkpoints import ENDS, Checkpoint
from sglang_hybrid.core.costs import ModelCosts

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode


class Facts(NamedTuple):
    """What policies compare of a checkpoint; see `core.policies.Policy.weight`."""

    saved_flops: float
    freed_bytes: float
    superseded: bool
    live_children: int


class LiveTree:
    """Checkpoints by node, and what depends on where the others are.

    Methods that change it return the nodes whose facts may have changed.
    """

    def __init__(self, costs: ModelCosts) -> None:
        self.costs = costs
        self.checkpoints: dict[int, Checkpoint] = {}
        # Node id -> children that are live (hold a checkpoint or lead to one); never 0.
        self._live_children: dict[int, int] = {}
        # Node id -> (depth in tokens, clock at which its KV was inserted).
        self._nodes: dict[int, tuple[int, int]] = {}

    def live_children(self, node: UnifiedTreeNode) -> int:
        return self._live_children.get(node.id, 0)

    def is_live(self, node: UnifiedTreeNode) -> bool:
        return node.id in self.checkpoints or node.id in self._live_children

    # ---- nodes ----

    def depth_of(self, node: UnifiedTreeNode, clock: int = 0) -> int:
        """Tokens from the root to the end of ``node``; one not yet known is of ``clock``."""
        unknown = []
        while node.parent is not None and node.id not in self._nodes:
            unknown.append(node)
            node = node.parent
        depth = self._nodes[node.id][0] if node.parent is not None else 0
        for node in reversed(unknown):
            depth += len(node.key)
            self._nodes[node.id] = (depth, clock)
        return depth

    def inserted_at(self, node: UnifiedTreeNode) -> int:
        """Clock at which ``node``'s KV was inserted."""
        return self._nodes[node.id][1]

    def split(self, upper: UnifiedTreeNode, lower: UnifiedTreeNode) -> None:
        """``upper``, new and without a checkpoint, was split off above ``lower``."""
        if lower.id in self._nodes:
            depth, clock = self._nodes[lower.id]
            self._nodes[upper.id] = (depth - len(lower.key), clock)
        if self.is_live(lower):
            self._live_children[upper.id] = 1

    def forget(self, node: UnifiedTreeNode) -> None:
        """``node``, a leaf without a checkpoint, leaves the tree."""
        self._nodes.pop(node.id, None)

    # ---- checkpoints ----

    def add(self, node: UnifiedTreeNode, checkpoint: Checkpoint) -> list[UnifiedTreeNode]:
        """``node`` received ``checkpoint``."""
        was_live = self.is_live(node)
        self.checkpoints[node.id] = checkpoint
        changed = self._live_below(node)
        if not was_live:
            changed += self._count(node, 1)
        return changed

    def remove(self, node: UnifiedTreeNode) -> list[UnifiedTreeNode]:
        """``node`` lost its checkpoint."""
        del self.checkpoints[node.id]
        changed = self._live_below(node)
        if not self.is_live(node):
            changed += self._count(node, -1)
        return changed

    def _count(self, node: UnifiedTreeNode, step: int) -> list[UnifiedTreeNode]:
        """``node`` became live (1) or ceased to be (-1): its ancestors may do so with it."""
        above = node.parent
        while above.parent is not None:
            before = self.live_children(above)
            after = before + step
            if after:
                self._live_children[above.id] = after
            else:
                del self._live_children[above.id]
            if above.id in self.checkpoints:
                return [above]
            if before + after == 3:  # a fork came or went: leaves below free other bytes
                return self._live_below(above)
            if before and after:
                return []
            above = above.parent
        return []

    def _live_below(self, node: UnifiedTreeNode) -> list[UnifiedTreeNode]:
        """The nearest checkpoints below ``node``."""
        found, below = [], list(node.children.values())
        while below:
            child = below.pop()
            if child.id in self.checkpoints:
                found.append(child)
            elif child.id in self._live_children:
                below.extend(child.children.values())
        return found

    # ---- facts ----

    def live_depth_above(self, node: UnifiedTreeNode, depth: int) -> int:
        """Depth of the deepest checkpoint above ``depth`` at or above ``node``, 0 for the root."""
        while node.parent is not None:
            checkpoint = self.checkpoints.get(node.id)
            if checkpoint is not None and checkpoint.depth < depth:
                return checkpoint.depth
            node = node.parent
        return 0

    def facts(self, node: UnifiedTreeNode) -> Facts:
        """Of ``node``'s checkpoint, as the tree stands now.

        The KV counted for a leaf reaches up to the nearest fork or checkpoint: what lies
        between cannot be hit without it.
        """
        checkpoints = self.checkpoints
        checkpoint, children = checkpoints[node.id], self._live_children.get(node.id, 0)
        above, fork, live = node.parent, None, None
        while above.parent is not None:
            live = checkpoints.get(above.id)
            if live is not None:
                break
            if fork is None and self._live_children[above.id] > 1:
                fork = above
            above = above.parent
        saved_flops, freed_bytes = checkpoint.prefill_flops, self.costs.state_bytes
        if live is not None:
            saved_flops -= live.prefill_flops
        if not children:
            kept = self.depth_of(fork or above)
            freed_bytes += self.costs.kv_bytes_per_token * (checkpoint.depth - kept)
        superseded = checkpoint.kind in ENDS and children == 1
        return Facts(saved_flops, freed_bytes, superseded, children)

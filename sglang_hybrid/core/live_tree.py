"""The live part of a radix tree: what leads to a checkpoint.

KV below the last checkpoint of a path cannot be hit. It stays as evidence for branch
points until the KV pool needs it, and counts for nothing else: it makes no fork, and a
checkpoint with only such KV below it is a leaf. Facts that policies compare are read off
the live tree, so they are those of a tree that drops such KV at once.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, NamedTuple, Protocol

from sglang_hybrid.core.checkpoints import ENDS, Checkpoint
from sglang_hybrid.core.costs import ModelCosts


class Node(Protocol):
    """A node of the tree that holds the KV.

    Attributes:
        id: unique for all time.
        key: the tokens between its parent's end and its own.
        parent: a node, or None for the root.
    """

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> Sized: ...

    @property
    def parent(self) -> Any: ...


class Facts(NamedTuple):
    """What policies compare of a checkpoint; see `policies.Policy.weight`."""

    saved_flops: float
    freed_bytes: float
    superseded: bool
    live_children: int


class Above(NamedTuple):
    """The nearest checkpoint, None if there is none, and the depth of the nearest node of
    those that stay when a leaf goes: it, or a fork on the way to it."""

    live: Checkpoint | None
    kept: int


class LiveTree:
    """Checkpoints by node, and what depends on where the others are.

    Methods that change it return the nodes whose facts may have changed.
    """

    def __init__(self, costs: ModelCosts) -> None:
        self.costs = costs
        self.checkpoints: dict[int, Checkpoint] = {}
        # Node id -> children that are live (hold a checkpoint or lead to one), by id; never
        # none. A fork may have thousands of children without a checkpoint: never looked at.
        self._live_children: dict[int, dict[int, Node]] = {}
        # Node id -> (depth in tokens, clock at which its KV was inserted).
        self._nodes: dict[int, tuple[int, int]] = {}

    def live_children(self, node: Node) -> int:
        return len(self._live_children.get(node.id, ()))

    def is_live(self, node: Node) -> bool:
        return node.id in self.checkpoints or node.id in self._live_children

    # ---- nodes ----

    def depth_of(self, node: Node, clock: int = 0) -> int:
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

    def inserted_at(self, node: Node) -> int:
        """Clock at which ``node``'s KV was inserted."""
        return self._nodes[node.id][1]

    def split(self, upper: Node, lower: Node) -> None:
        """``upper``, new and without a checkpoint, was split off above ``lower``."""
        if lower.id in self._nodes:
            depth, clock = self._nodes[lower.id]
            self._nodes[upper.id] = (depth - len(lower.key), clock)
        if self.is_live(lower):
            self._live_children[upper.id] = {lower.id: lower}
            siblings = self._live_children.get(upper.parent.id)
            if siblings is not None:  # the root has no entry
                del siblings[lower.id]
                siblings[upper.id] = upper

    def forget(self, node: Node) -> None:
        """``node``, a leaf without a checkpoint, leaves the tree."""
        self._nodes.pop(node.id, None)

    # ---- checkpoints ----

    def add(self, node: Node, checkpoint: Checkpoint) -> list[Node]:
        """``node`` received ``checkpoint``."""
        was_live = self.is_live(node)
        self.checkpoints[node.id] = checkpoint
        changed = self._live_below(node)
        if not was_live:
            changed += self._count(node, 1)
        return changed

    def remove(self, node: Node) -> list[Node]:
        """``node`` lost its checkpoint."""
        del self.checkpoints[node.id]
        changed = self._live_below(node)
        if not self.is_live(node):
            changed += self._count(node, -1)
        return changed

    def _count(self, node: Node, step: int) -> list[Node]:
        """``node`` became live (1) or ceased to be (-1): its ancestors may do so with it."""
        above = node.parent
        while above.parent is not None:
            children = self._live_children.setdefault(above.id, {})
            before = len(children)
            if step > 0:
                children[node.id] = node
            else:
                del children[node.id]
            after = len(children)
            if not after:
                del self._live_children[above.id]
            if above.id in self.checkpoints:
                return [above]
            if before + after == 3:  # a fork came or went: leaves below free other bytes
                return self._live_below(above)
            if before and after:
                return []
            node, above = above, above.parent
        return []

    def _live_below(self, node: Node) -> list[Node]:
        """The nearest checkpoints below ``node``; looks at live nodes only."""
        found, below = [], [*self._live_children.get(node.id, {}).values()]
        while below:
            child = below.pop()
            if child.id in self.checkpoints:
                found.append(child)
            else:
                below.extend(self._live_children[child.id].values())
        return found

    # ---- facts ----

    def live_depth_above(self, node: Node, depth: int) -> int:
        """Depth of the deepest checkpoint above ``depth`` at or above ``node``, 0 for the root."""
        while node.parent is not None:
            checkpoint = self.checkpoints.get(node.id)
            if checkpoint is not None and checkpoint.depth < depth:
                return checkpoint.depth
            node = node.parent
        return 0

    def facts(self, node: Node, found_above: dict[int, Above] | None = None) -> Facts:
        """Of ``node``'s checkpoint, as the tree stands now.

        The KV counted for a leaf reaches up to the nearest fork or checkpoint: what lies
        between cannot be hit without it.

        Args:
            found_above: what was found on the way up from other nodes since the tree changed
                last; added to, so that no way is walked twice.
        """
        checkpoint, children = self.checkpoints[node.id], self.live_children(node)
        above = self._above(node.parent, {} if found_above is None else found_above)
        saved_flops, freed_bytes = checkpoint.prefill_flops, self.costs.state_bytes
        if above.live is not None:
            saved_flops -= above.live.prefill_flops
        if not children:
            freed_bytes += self.costs.kv_bytes_per_token * (checkpoint.depth - above.kept)
        superseded = checkpoint.kind in ENDS and children == 1
        return Facts(saved_flops, freed_bytes, superseded, children)

    def _above(self, node: Node, known: dict[int, Above]) -> Above:
        """What is nearest at or above ``node``."""
        passed = []
        while (found := known.get(node.id)) is None:
            live = self.checkpoints.get(node.id)
            if live is not None or node.parent is None:
                found = known[node.id] = Above(live, self.depth_of(node))
                break
            passed.append(node)
            node = node.parent
        for each in reversed(passed):
            if len(self._live_children[each.id]) > 1:
                found = Above(found.live, self.depth_of(each))
            known[each.id] = found
        return found

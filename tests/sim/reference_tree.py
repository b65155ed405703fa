"""Resident tokens and states of the reference replay: a trie of single tokens.

Nothing is kept that can be found by looking: ancestors, children, freed tokens are
all recomputed on every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sglang_hybrid.core.checkpoints import ENDS, Kind
from sglang_hybrid.sim.trace import Trace

Token = tuple[int, int]  # symbol, offset in it


@dataclass(eq=False)
class State:
    kind: Kind
    last: int
    is_first_victim: bool = False
    hits: int = 0
    base: float = 0.0  # gdsf: loss of the last victim when `last` was set
    turn: int = 0  # density: of the request that made it


@dataclass(eq=False)
class Position:
    """A place in the tree: the token that leads to it, and all before it, are resident."""

    parent: Position | None = None
    token: Token | None = None
    children: dict[Token, Position] = field(default_factory=dict)
    state: State | None = None
    was_hit: bool = False  # the token was part of a hit
    made: int = 0  # two pools: request that inserted it
    counts_live_only: bool = False  # two pools: what leads to no state is no child

    @property
    def depth(self) -> int:
        return len(self.tokens())

    @property
    def is_leaf(self) -> bool:
        return not self.kin

    @property
    def is_gone(self) -> bool:
        """Whether its token was freed."""
        return self.parent.children.get(self.token) is not self

    @property
    def kin(self) -> list[Position]:
        """Children that count."""
        children = list(self.children.values())
        return [c for c in children if c.is_live] if self.counts_live_only else children

    @property
    def is_live(self) -> bool:
        """Whether a state is here or further on."""
        return self.state is not None or any(child.is_live for child in self.children.values())

    def tokens(self) -> list[Token]:
        tokens = []
        position = self
        while position.parent is not None:
            tokens.append(position.token)
            position = position.parent
        return tokens[::-1]

    def live_ancestor(self) -> int:
        """Depth of the nearest live state above; the root counts as one."""
        position = self.parent
        while position.parent is not None and position.state is None:
            position = position.parent
        return position.depth

    def own_tokens(self) -> int:
        """Of a leaf: tokens down to it from the nearest state, fork or root above."""
        tokens, position = 1, self.parent
        while position.parent is not None and position.state is None and len(position.kin) < 2:
            tokens, position = tokens + 1, position.parent
        return tokens

    def is_superseded(self) -> bool:
        return len(self.kin) == 1 and self.state.kind in ENDS


class Tree:
    def __init__(self) -> None:
        self.root = Position()

    def path(self, tokens: Sequence[Token]) -> list[Position]:
        """Resident positions along ``tokens``, from the root; index = depth."""
        path = [self.root]
        for token in tokens:
            if token not in path[-1].children:
                break
            path.append(path[-1].children[token])
        return path

    def insert(self, tokens: Sequence[Token]) -> int:
        """Make ``tokens`` resident; how many were not."""
        position, new = self.root, 0
        for token in tokens:
            if token not in position.children:
                position.children[token] = Position(
                    position, token, counts_live_only=position.counts_live_only
                )
                new += 1
            position = position.children[token]
        return new

    def free_tip(self, position: Position, pinned: Collection[Position]) -> int:
        """Free the KV of a stateless leaf up to the nearest state, fork or pinned position.

        Does nothing to a position that is no stateless leaf, or is pinned.
        """
        freed = 0
        while (
            position.parent is not None
            and not position.children
            and position.state is None
            and position not in pinned
        ):
            parent = position.parent
            del parent.children[position.token]  # a fork keeps a child, which ends the loop
            freed, position = freed + 1, parent
        return freed

    def positions(self) -> Iterator[Position]:
        """All resident tokens' positions (not the root)."""
        rest = list(self.root.children.values())
        while rest:
            position = rest.pop()
            yield position
            rest += position.children.values()

    def with_states(self) -> list[Position]:
        return [position for position in self.positions() if position.state is not None]


def expand(trace: Trace, request: int) -> list[Token]:
    """The tokens of a request's input and output."""
    width = trace.tokens_per_symbol
    tokens = [(int(s), offset) for s in trace.sequence(request) for offset in range(width)]
    return tokens[: int(trace.input_len[request] + trace.output_len[request])]

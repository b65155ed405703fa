"""Contents of the reference replay's cache: what is used, what is pinned, what goes next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec

from .reference_policies import Candidate, Density, pick
from .reference_tree import Position, Token, Tree


@dataclass
class Outcome:
    """What a replay did. Lists of the first lines have one value per request."""

    hits: list[int] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    rejected: list[bool] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    victims: list[tuple[int, int, bool]] = field(default_factory=list)  # clock, depth, leaf?
    kv_tokens: int = 0  # resident at the end
    states: list[int] = field(default_factory=list)  # the same: depths, sorted
    used_bytes: float = 0.0
    state_evictions: int = 0
    kv_tokens_evicted: int = 0
    states_made: int = 0
    states_used: int = 0
    kv_tokens_inserted: int = 0
    kv_tokens_used: int = 0


@dataclass(eq=False)
class Running:
    """A request between its start and its end."""

    request: int
    sequence: list[Token]
    turn: int
    path: list[Position]  # pinned, from the root
    kv_end: int
    end: float = math.inf
    reserved_tokens: int = 0
    # Two pools: KV that is not in the tree, and whether a slot is held to work on.
    private_tokens: int = 0
    works: bool = False
    reserved_states: int = 0
    output: list[tuple[int, Kind]] = field(default_factory=list)
    later: list[tuple[int, Kind, bool]] = field(default_factory=list)  # reserved states
    made: list[int] = field(default_factory=list)  # depths of new states


class Cache:
    def __init__(self, costs: ModelCosts, policy: PolicySpec, budget: Budget | None) -> None:
        self.costs, self.policy, self.budget = costs, policy, budget
        self.first_order = PolicySpec("utility", alpha=1.0, bucket_width=policy.bucket_width)
        self.out = Outcome()
        self.tree = Tree()
        self.running: list[Running] = []
        self.seen: list[list[Token]] = []  # full sequences of the requests that have started
        self.inflation = 0.0  # gdsf: loss of the last victim
        self.density = Density(policy.seed)

    # Occupancy, always counted anew: pairs of tokens and states.

    def used(self) -> tuple[int, int]:
        tokens, states = self.reserved()
        resident = sum(1 for _ in self.tree.positions())
        return tokens + resident, states + len(self.tree.with_states())

    def used_as_pinned(self) -> tuple[int, int]:
        tokens, states = self.reserved()
        pinned = self.pinned()
        return tokens + len(pinned), states + sum(1 for p in pinned if p.state is not None)

    def reserved(self) -> tuple[int, int]:
        tokens = sum(run.reserved_tokens for run in self.running)
        return tokens, sum(len(run.later) for run in self.running)

    def pinned(self) -> set[Position]:
        return {position for run in self.running for position in run.path[1:]}

    def positions_with_pinned_states(self) -> set[Position]:
        return self.pinned()

    def fits(self, tokens: int, states: int) -> bool:
        if self.budget is None:
            return True
        return self.bytes_of(tokens, states) <= self.budget.total_bytes

    def bytes_of(self, tokens: int, states: int) -> float:
        return self.costs.kv_bytes_per_token * tokens + self.costs.state_bytes * states

    # Eviction.

    def candidate(self, position: Position, r: int) -> Candidate:
        """The facts, from the live tree."""
        state, depth, above = position.state, position.depth, position.live_ancestor()
        freed = self.costs.state_bytes
        if position.is_leaf:
            freed = freed + self.costs.kv_bytes_per_token * position.own_tokens()
        return Candidate(
            depth=depth,
            last=state.last,
            hits=state.hits,
            saved=self.costs.prefill_flops(depth) - self.costs.prefill_flops(above),
            freed=freed,
            superseded=position.is_superseded(),
            segment=depth - above,
            base=state.base,
            longest=self.longest_through(position) if self.policy.kind == "tlru" else 0,
            density=self.density.of(state, position.is_leaf, r),
            position=position,
        )

    def longest_through(self, position: Position) -> int:
        tokens = position.tokens()
        return max(len(s) for s in self.seen if s[: len(tokens)] == tokens)

    def first_victim(self, r: int, leaves: bool = False) -> Position | None:
        firsts = self.first_victims(leaves)
        if not firsts:
            return None
        return pick(self.first_order, [self.candidate(p, r) for p in firsts], r)[1].position

    def first_victims(self, leaves: bool) -> list[Position]:
        pinned = self.pinned()
        return [
            position
            for position in self.tree.with_states()
            if position.state.is_first_victim
            and position not in pinned
            and len(position.children) <= (0 if leaves else 1)
        ]

    def ordinary(self, leaves: bool = False) -> list[Position]:
        """Candidates when there is no first victim."""
        pinned = self.pinned()
        most = {"single_child": 1, "leaf": 0, "any": math.inf}[self.policy.candidates]
        return [
            position
            for position in self.tree.with_states()
            if position not in pinned and len(position.children) <= (0 if leaves else most)
        ]

    def pick_ordinary(self, r: int, leaves: bool = False) -> Candidate | None:
        positions = self.ordinary(leaves)
        if not positions:
            return None
        if self.policy.kind == "density":
            by_state = {position.state: position for position in positions}
            drawn = self.density.draws(lambda state: state in by_state)
            positions = [by_state[state] for state in drawn] or positions
        loss, victim = pick(self.policy, [self.candidate(p, r) for p in positions], r)
        if self.policy.kind == "gdsf":
            self.inflation = loss
        return victim

    def evict_next(self, r: int) -> None:
        """Evict the next victim of all; there is one."""
        victim = self.first_victim(r) or self.pick_ordinary(r).position
        self.evict(victim, r)

    def last_pass(self, position: Position) -> int:
        tokens = position.tokens()
        return max(r for r, s in enumerate(self.seen) if s[: len(tokens)] == tokens)

    def evict(self, position: Position, r: int) -> None:
        state = position.state
        self.density.event(state, position.is_leaf, r, is_hit=False)
        self.density.remove(state)
        self.out.victims.append((r, position.depth, position.is_leaf))
        position.state = None
        self.free_tip(position)

    def free_tip(self, position: Position) -> None:
        self.out.kv_tokens_evicted += self.tree.free_tip(position, self.pinned())

    def make_room(self, r: int, tokens: int, states: int) -> None:
        """Evict until so much more fits, which it does beside what is pinned."""
        while not self.fits(self.used()[0] + tokens, self.used()[1] + states):
            self.evict_next(r)

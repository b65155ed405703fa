"""No replay beats the bounds: random victims on tiny traces, and cases counted by hand."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.bounds import full_kv_reuse, objective_total, upper_bound
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.trace import Trace, TraceBuilder
from sglang_hybrid.sim.union_tree import compile_trace

MARCONI = Admission(branch=1, decode_end=1)
ADMISSIONS = {
    "marconi": MARCONI,
    "prompt": Admission(branch=1, branch_full=True, decode_end=1, prompt_end=1),
    "grid": Admission(branch=3, branch_full=True, decode_end=4, prompt_end=2),
    "min-gain": Admission(branch=1, branch_full=True, decode_end=1, min_gain_tokens=3),
    "block": Admission(block_tokens=3),
    "chunk": Admission(branch=1, chunk_tokens=4, prompt_end=1),
    "chunk-grid": Admission(branch=2, chunk_tokens=6, prompt_end=2, decode_end=4),
    "ghost": Admission(branch=1, decode_end=1, ghost_forks=2, ghost_self=True),
    "system": Admission(decode_end=1, system_end=True),
}
COSTS = (
    ModelCosts(kv_bytes_per_token=1, state_bytes=4, flops_linear=2, flops_quadratic=1),
    ModelCosts(kv_bytes_per_token=3, state_bytes=1, flops_linear=9, flops_quadratic=0),
    ModelCosts(kv_bytes_per_token=0, state_bytes=2, flops_linear=1, flops_quadratic=0.5),
)


def random_trace(rng: random.Random) -> Trace:
    """Few prompts again and again, continued and branched off from."""
    builder = TraceBuilder("random")
    sequences: list[list[int]] = []
    for _ in range(rng.randint(2, 14)):
        base = rng.choice(sequences) if sequences and rng.random() < 0.8 else []
        keep = len(base) if rng.random() < 0.6 else rng.randint(0, len(base))
        sequence = base[:keep] + [rng.randrange(3) for _ in range(rng.randint(1, 6))]
        if len(sequence) > 24:
            sequence = sequence[: rng.randint(1, 24)]
        input_len = rng.randint(max(1, len(sequence) - 3), len(sequence))
        system_len = rng.choice([None, min(3, input_len)])
        builder.add(sequence, input_len, len(sequence) - input_len, system_len=system_len)
        sequences.append(sequence)
    return builder.build()


@dataclass
class Cache:
    """Serial replay of docs/simulator.md with random victims; positions are token tuples."""

    admission: Admission
    costs: ModelCosts
    budget: Budget
    rng: random.Random
    resident: set[tuple[int, ...]] = field(default_factory=set)
    states: set[tuple[int, ...]] = field(default_factory=set)
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def serve(self, sequence: tuple[int, ...], input_len: int, system_len: int) -> int:
        prefixes = [sequence[:d] for d in range(1, len(sequence) + 1)]
        pinned = {p for p in prefixes if p in self.resident}
        matched = min(len(pinned), input_len)
        usable = [p for p in pinned & self.states if len(p) < input_len]
        hit = max(map(len, usable), default=0)
        wanted = self.wanted(sequence, input_len, system_len, matched, hit)
        self.seen.append(sequence)
        new = {sequence[:d] for d in wanted if d > hit} - self.states
        need = len(sequence) - len(pinned), len(new)
        if self.fits(need[0] + len(pinned), need[1] + len(pinned & self.states)):
            while not self.fits(need[0] + len(self.resident), need[1] + len(self.states)):
                self.evict(pinned)
            self.resident.update(prefixes)
            self.states |= new
        self.free_tip(sequence, set())
        return hit

    def fits(self, tokens: int, states: int) -> bool:
        if self.budget.has_pools:
            return tokens <= self.budget.kv_tokens and states <= self.budget.state_slots
        kv, state = self.costs.kv_bytes_per_token, self.costs.state_bytes
        return kv * tokens + state * states <= self.budget.total_bytes

    def children(self, position: tuple[int, ...]) -> int:
        return sum((*position, symbol) in self.resident for symbol in range(3))

    def evict(self, pinned: set[tuple[int, ...]]) -> None:
        victims = [p for p in self.states - pinned if self.children(p) <= 1]
        victim = self.rng.choice(sorted(victims))
        self.states.remove(victim)
        self.free_tip(victim, pinned)

    def free_tip(self, position: tuple[int, ...], pinned: set[tuple[int, ...]]) -> None:
        while position and not (
            position in self.states or position in pinned or self.children(position)
        ):
            self.resident.discard(position)
            position = position[:-1]

    def wanted(
        self, sequence: tuple[int, ...], input_len: int, system_len: int, matched: int, hit: int
    ) -> set[int]:
        a, total = self.admission, len(sequence)
        branch: set[int] = set()
        if a.branch and (matched < input_len or a.branch_full):
            at = matched if matched < input_len else input_len - 1
            branch.add(at - at % a.branch)
        if a.ghost_forks:
            branch |= set(sorted(d for d in self.forks(sequence, input_len) if d > hit)[-2:])
        if a.system_end and 0 < system_len < input_len:
            branch.add(system_len)
        depths = {d for d in branch if d >= hit + a.min_gain_tokens}
        if a.block_tokens:
            depths |= set(range(a.block_tokens, total + 1, a.block_tokens))
        if a.decode_end:
            at = total - total % a.decode_end
            depths |= {at} if a.decode_end == 1 or at > input_len else set()
        if a.chunk_tokens:
            for start in range(hit, input_len, a.chunk_tokens):
                size = min(a.chunk_tokens, input_len - start)
                depths.add(start + size - size % a.prompt_end)
        elif a.prompt_end:
            depths.add(input_len - input_len % a.prompt_end)
        return depths

    def forks(self, sequence: tuple[int, ...], input_len: int) -> set[int]:
        others = [*self.seen, sequence]
        return {
            d
            for d in range(1, input_len)
            if len({s[d] for s in others if len(s) > d and s[:d] == sequence[:d]}) >= 2
        }


def replay(
    trace: Trace, admission: Admission, costs: ModelCosts, budget: Budget, seed: int = 0
) -> list[int]:
    cache = Cache(admission, costs, budget, random.Random(seed))
    return [
        cache.serve(tuple(trace.sequence(r)), int(trace.input_len[r]), int(trace.system_len[r]))
        for r in range(len(trace))
    ]


@pytest.mark.parametrize("name", ADMISSIONS)
def test_no_choice_of_victims_beats_the_bound(name):
    admission = ADMISSIONS[name]
    some_hit = close = 0
    for seed in range(60):
        rng = random.Random(seed)
        trace = random_trace(rng)
        tree = compile_trace(trace)
        costs = rng.choice(COSTS)
        budget = Budget(rng.randint(5, 120))
        if seed % 3 == 0:
            budget = Budget(0, state_slots=rng.randint(1, 12), kv_tokens=rng.randint(5, 80))
        system_len = rng.choice([None, trace.system_len])
        tokens, flops = (
            upper_bound(tree, costs, admission, budget, objective=objective, system_len=system_len)
            for objective in ("tokens", "flops")
        )
        best = 0
        for eviction_seed in range(8):
            hits = replay(trace, admission, costs, budget, eviction_seed)
            best = max(best, sum(hits))
            assert sum(hits) <= tokens * (1 + 1e-9), (seed, eviction_seed)
            assert sum(map(costs.prefill_flops, hits)) <= flops * (1 + 1e-9), (seed, eviction_seed)
        assert tokens <= full_kv_reuse(tree) * (1 + 1e-9)
        some_hit += best > 0
        close += best > 0.8 * tokens > 0
    assert some_hit > 10
    assert close > 5, "a bound far above every replay would say nothing"


def conversations(*lengths: tuple[int, int], users: int = 2) -> Trace:
    """Users take turns; each turn's prompt extends their last sequence. Lengths: in, out."""
    builder = TraceBuilder("conversations")
    for input_len, output_len in lengths:
        for user in range(users):
            builder.add([user] * (input_len + output_len), input_len, output_len)
    return builder.build()


BYTES = ModelCosts(kv_bytes_per_token=1, state_bytes=10, flops_linear=1, flops_quadratic=0)


def test_bound_is_reached_where_all_fits():
    trace = conversations((3, 1), (6, 1))
    hits = replay(trace, MARCONI, BYTES, Budget(1000))
    assert hits == [0, 0, 4, 4]
    assert upper_bound(compile_trace(trace), BYTES, MARCONI, 1000) == 8


def test_bound_is_reached_where_one_of_two_conversations_fits():
    # Each takes 4 tokens and a state: 14 bytes. With 14 bytes, at the moment of the second
    # request the first's cannot be there too, so only the second's reply can hit.
    trace = conversations((3, 1), (6, 1))
    assert replay(trace, MARCONI, BYTES, Budget(14)) == [0, 0, 0, 4]
    assert upper_bound(compile_trace(trace), BYTES, MARCONI, 14) == pytest.approx(4, rel=0.02)


def test_nothing_is_saved_where_nothing_fits():
    tree = compile_trace(conversations((3, 1), (6, 1)))
    assert upper_bound(tree, BYTES, MARCONI, 0) == pytest.approx(0, abs=1e-3)
    assert upper_bound(tree, BYTES, MARCONI, 3) < 2


def test_bound_grows_with_the_budget():
    tree = compile_trace(conversations((3, 1), (6, 2), (12, 1), (20, 1), users=4))
    bounds = [upper_bound(tree, BYTES, MARCONI, b) for b in (0, 10, 30, 60, 100, 200, 1e9)]
    assert bounds[0] < bounds[2] < bounds[3] < bounds[4]
    assert all(a <= b * 1.01 for a, b in pairwise(bounds))
    assert bounds[-1] == upper_bound(tree, BYTES, MARCONI, float("inf"))


def test_a_position_needs_a_rule_that_reaches_it():
    # The prompt [0, 0] comes twice with different outputs: no decode end lies on it.
    builder = TraceBuilder("twice")
    builder.add([0, 0, 0, 1], 3, 1)
    builder.add([0, 0, 0, 2], 3, 1)
    builder.add([0, 0, 0, 1], 3, 1)
    tree = compile_trace(builder.build())
    decode_ends = Admission(decode_end=1)
    assert upper_bound(tree, BYTES, decode_ends, 1e9) == 0
    full = Admission(branch=1, branch_full=True, decode_end=1)
    assert upper_bound(tree, BYTES, full, 1e9) == 4  # at in - 1
    assert upper_bound(tree, BYTES, Admission(block_tokens=2), 1e9) == 4
    assert full_kv_reuse(tree) == 4


def test_system_ends_are_tighter_when_they_are_known():
    builder = TraceBuilder("system")
    builder.add([0, 0, 0, 0, 1, 1], 6, 0, system_len=2)
    builder.add([0, 0, 0, 0, 2, 2], 6, 0, system_len=2)
    trace = builder.build()
    tree, admission = compile_trace(trace), ADMISSIONS["system"]
    assert upper_bound(tree, BYTES, admission, 1e9) == 4
    assert upper_bound(tree, BYTES, admission, 1e9, system_len=trace.system_len) == 2


def test_concurrent_replays_may_branch_where_a_running_prompt_ends():
    builder = TraceBuilder("running")
    builder.add([0, 0, 1], 2, 1)
    builder.add([0, 0, 1, 1], 4, 0)
    builder.add([0, 0, 1, 2], 4, 0)
    tree = compile_trace(builder.build())
    branch = Admission(branch=1)
    assert upper_bound(tree, BYTES, branch, 1e9) == 0  # the fork is seen by the last one
    assert upper_bound(tree, BYTES, branch, 1e9, replay="concurrent") == 6
    # So may serial ones in a pool of KV, where that of the first stays without a state.
    pools = Budget(float("inf"), state_slots=9, kv_tokens=99)
    run = SerialReplay(tree, BYTES, PolicySpec("lru"), branch, pools)
    run.advance(3)
    assert run.served.hits.tolist() == [0, 0, 3]
    assert upper_bound(tree, BYTES, branch, pools) == 6


def test_an_infinite_cache_is_no_bound():
    builder = TraceBuilder("surprise")
    builder.add([0, 1, 2, 0, 0, 0], 1, 5)
    builder.add([0, 1, 0], 1, 2)
    builder.add([1, 1, 1, 1], 4, 0)  # needs the room of one of them
    builder.add([0, 1, 2, 2], 4, 0)  # leaves the tree at [0, 1, 2], or, if that has gone, [0, 1]
    builder.add([0, 1, 1], 3, 0)
    trace = builder.build()
    tree = compile_trace(trace)
    infinite = sum(replay(trace, MARCONI, BYTES, Budget(float("inf"))))
    small = [sum(replay(trace, MARCONI, BYTES, Budget(37), seed)) for seed in range(20)]
    assert infinite == 0
    assert max(small) == 2
    assert upper_bound(tree, BYTES, MARCONI, 37) >= 2
    assert upper_bound(tree, BYTES, MARCONI, 37, infinite=infinite) == 0


def test_shares_are_of_all_prompts():
    tree = compile_trace(conversations((3, 1), (6, 1)))
    assert objective_total(tree, COSTS[0], "tokens") == 18
    assert objective_total(tree, COSTS[0]) == 2 * (5 * 3 + 8 * 6)

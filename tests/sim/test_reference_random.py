"""What holds for every replay, on random ones."""

from collections import Counter
from dataclasses import replace

import pytest

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.policy_spec import PolicySpec

from . import reference
from .reference import Replay, Schedule
from .strategies import POLICIES, random_case


class Checked(Replay):
    """The reference, looked at after every start and end."""

    def start(self, r, split):
        started = super().start(r, split)
        self.check()
        return started

    def finish(self, run):
        super().finish(run)
        self.check()

    def check(self):
        pinned = self.pinned()
        assert self.fits(*self.used())
        for position in self.tree.positions():
            assert position.state or position.children or position in pinned
        states = [position.state for position in self.tree.with_states()]
        assert set(states) == set(self.density.states)
        assert len(states) == len(self.density.states)
        keys = [(p.state.last, p.depth) for p in self.tree.with_states()]
        assert len(keys) == len(set(keys))  # so ties are decided
        for position in pinned:
            assert position.parent.children[position.token] is position


@pytest.mark.parametrize("policy", POLICIES)
def test_invariants_of_the_reference(policy):
    for seed in range(40):
        case = random_case(seed, policy=policy)
        checked = Checked(case.trace, case.costs, case.policy, case.admission, case.budget)
        if case.schedule is None:
            checked.serial(None)
        else:
            checked.concurrent(case.schedule, case.prefill_seconds)
        out = checked.outcome()
        assert not checked.running
        assert case.budget is not None or not any(out.rejected)


def test_hits_lie_within_matches(replay):
    for seed in range(120):
        case = random_case(seed)
        out = case.replay(replay)
        lengths = case.trace.input_len
        for hit, matched, length in zip(out.hits, out.matched, lengths, strict=True):
            assert 0 <= hit <= min(matched, length - 1)
        assert out.kv_tokens_used <= out.kv_tokens_inserted
        assert out.states_used <= out.states_made
        clocks = [r for r, _, _ in out.victims]
        if case.schedule is None:
            assert clocks == sorted(clocks)
            assert not {r for r in clocks if out.rejected[r]}


@pytest.mark.parametrize(
    "admission", [Admission(decode_end=1), Admission(block_tokens=2), Admission(prompt_end=1)]
)
def test_an_infinite_cache_hits_at_least_as_much(replay, admission):
    # It does where what is wanted does not depend on what is there: nothing wanted ever goes.
    for seed in range(100):
        case = replace(random_case(seed, concurrent=False), admission=admission)
        finite, infinite = case.replay(replay), replace(case, budget=None).replay(replay)
        assert not infinite.victims
        assert all(a <= b for a, b in zip(finite.hits, infinite.hits, strict=True))


def test_alpha_zero_is_lru(replay):
    for seed in range(60):
        case = random_case(seed)
        admission = replace(case.admission, first_victims=False)
        outs = [
            replace(case, admission=admission, policy=policy).replay(replay)
            for policy in (
                PolicySpec("lru"),
                PolicySpec("marconi", alpha=0.0, bucket_width=0.25),
                PolicySpec("marconi", alpha=0.0, bucket_width=0.0),
            )
        ]
        assert outs[0].victims == outs[1].victims == outs[2].victims


def test_one_at_a_time_hits_like_a_serial_replay(replay):
    for seed in range(60):
        case = random_case(seed)
        admission = replace(case.admission, first_victims=False)
        case = replace(case, admission=admission, schedule=None)
        serial = case.replay(replay)
        alone = replace(case, schedule=Schedule(1, 0.5)).replay(replay)
        assert replace(alone, ttft=serial.ttft) == serial


def test_random_cases_are_rich():
    """So that agreement on them means something."""
    seen = Counter()
    for seed in range(300):
        case = random_case(seed)
        out = case.replay(reference.replay)
        seen["concurrent"] += case.schedule is not None
        seen["requests"] += len(out.hits)
        seen["hits"] += sum(hit > 0 for hit in out.hits)
        seen["rejected"] += sum(out.rejected)
        seen["leaves"] += sum(leaf for _, _, leaf in out.victims)
        seen["interior"] += sum(not leaf for _, _, leaf in out.victims)
        seen["partial matches"] += sum(h < m for h, m in zip(out.hits, out.matched, strict=True))
    assert seen["requests"] > 3000
    assert seen["concurrent"] > 60
    for what in ("hits", "rejected", "leaves", "interior", "partial matches"):
        assert seen[what] > 300, (what, seen)


def test_densities_are_learned_in_long_cases():
    case = random_case(6, policy="density", requests=800, concurrent=False)
    checked = Replay(case.trace, case.costs, case.policy, case.admission, case.budget)
    checked.serial(None)
    learned = checked.density
    assert learned.events >= 512
    assert sum(map(sum, learned.hits.values())) % 1  # no whole number: some were forgotten
    assert len({tuple(row) for row in learned.density.values()}) > 10


def test_the_same_seed_gives_the_same_case():
    first, second = random_case(3), random_case(3)
    assert list(first.trace.symbols) == list(second.trace.symbols)
    assert replace(first, trace=None) == replace(second, trace=None)

"""Reference replay: the rules of docs/simulator.md, token by token, without any cleverness.

For traces of a few dozen requests of a few dozen tokens. `replay` is all there is to call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.trace import Trace

from .reference_admission import plan
from .reference_cache import Cache, Outcome, Running
from .reference_policies import Candidate, losses
from .reference_tree import Position, State, Token, expand

PAGE = 3
"""Tokens; the product's are too long for the traces here."""

FIRST_KINDS = (Kind.PROMPT_END, Kind.CHUNK)


def starts_with_pages_of(prompt: list[Token], sequence: list[Token]) -> bool:
    length = len(sequence) - len(sequence) % PAGE
    return 0 < length <= len(prompt) and prompt[:length] == sequence[:length]


@dataclass(frozen=True)
class Schedule:
    """Of a concurrent replay."""

    max_running: int
    seconds_per_output_token: float


def replay(
    trace: Trace,
    costs: ModelCosts,
    policy: PolicySpec,
    admission: Admission,
    budget: Budget | None,
    *,
    schedule: Schedule | None = None,
    prefill_seconds: Callable[[int, int], float] | None = None,
) -> Outcome:
    """Replay ``trace``; ``budget`` None: infinite; ``schedule`` None: one after another.

    ``prefill_seconds(input tokens, hit tokens)`` is needed with a schedule, and without
    one only for the TTFT.
    """
    of = Replay
    if budget is not None and budget.has_pools:
        from .reference_pools import PoolReplay as of  # which builds on this module
    run = of(trace, costs, policy, admission, budget)
    if schedule is None:
        run.serial(prefill_seconds)
    else:
        run.concurrent(schedule, prefill_seconds)
    return run.outcome()


class Replay(Cache):
    def __init__(
        self,
        trace: Trace,
        costs: ModelCosts,
        policy: PolicySpec,
        admission: Admission,
        budget: Budget | None,
    ) -> None:
        super().__init__(costs, policy, budget)
        self.trace, self.admission = trace, admission
        self.used_kinds: set[Kind] = set()
        self.consumed: set[State] = set()

    def serial(self, prefill_seconds: Callable[[int, int], float] | None) -> None:
        for r in range(len(self.trace)):
            self.start(r, split=False)
            self.finish(self.running[0])
            if prefill_seconds is not None:
                seconds = prefill_seconds(int(self.trace.input_len[r]), self.out.hits[r])
                self.out.ttft.append(seconds)

    def concurrent(self, schedule: Schedule, prefill_seconds: Callable[[int, int], float]) -> None:
        started = prefilled = 0.0
        for r in range(len(self.trace)):
            arrival = float(self.trace.arrival[r])
            if math.isnan(arrival):
                arrival = started
            started = max(arrival, started)
            self.finish_until(started)
            while len(self.running) >= schedule.max_running or not self.start(r, split=True):
                started = max(started, min(run.end for run in self.running))
                self.finish_until(started)
            seconds = prefill_seconds(int(self.trace.input_len[r]), self.out.hits[r])
            prefilled = max(started, prefilled) + seconds
            self.out.ttft.append(prefilled - arrival)
            decode = int(self.trace.output_len[r]) * schedule.seconds_per_output_token
            self.running[-1].end = prefilled + decode
        self.finish_until(math.inf)

    def finish_until(self, now: float) -> None:
        for run in sorted(self.running, key=lambda run: (run.end, run.request)):
            if run.end <= now:
                self.finish(run)

    def start(self, r: int, split: bool) -> bool:
        """Steps 1 to 8; False, and nothing happened, if it must wait for a running one.

        With ``split``, what lies beyond the prompt is only reserved.
        """
        sequence = expand(self.trace, r)
        input_len, system_len = int(self.trace.input_len[r]), int(self.trace.system_len[r])
        # 1. Match.
        path = self.tree.path(sequence)
        resident = len(path) - 1
        matched = min(resident, input_len)
        hit = max((p.depth for p in path[:input_len] if p.state is not None), default=0)
        # 3. Pin.
        run = Running(r, sequence, self.turn_of(sequence[:input_len]), path, resident)
        self.running.append(run)
        # 4. Plan.
        wanted = plan(self.admission, sequence, input_len, matched, hit, system_len, seen=self.seen)
        held = [(d, kind) for d, kind in wanted if d <= resident and path[d].state is not None]
        new = [each for each in wanted if each not in held]
        extra = [each for each in new if self.admission.first_victims and each[1] in FIRST_KINDS]
        asked = [each for each in new if each not in extra]
        kv_end = len(sequence)
        if self.admission.truncate:
            kv_end = max([resident, *(depth for depth, _ in wanted)])
        need_tokens, need_states = kv_end - resident, len(asked)
        # First half of 6: whether it can fit at all. If it waits, nothing has changed.
        pinned_tokens, pinned_states = self.used_as_pinned()
        fits = self.fits(need_tokens + pinned_tokens, need_states + pinned_states)
        if not fits and len(self.running) > 1:
            self.running.remove(run)
            return False
        self.seen.append(sequence)
        self.out.hits.append(hit)
        self.out.matched.append(matched)
        # 2. Touch. 5. Renew.
        self.touch(r, path, matched, hit)
        for depth, kind in held:
            self.renew(path[depth].state, kind, r)
        # 6. Space.
        self.out.rejected.append(not fits)
        if fits:
            self.make_room(r, need_tokens, need_states)
            # 7. Insert.
            run.kv_end = kv_end
            limit = input_len if split else len(sequence)
            self.insert(run, min(kv_end, limit))
            run.reserved_tokens = kv_end - (len(run.path) - 1)
            for depth, kind in asked:
                self.take(run, depth, kind, False, limit)
            # 8. First victims.
            for depth, kind in extra:
                if self.make_room_for_extra(run, depth):
                    self.take(run, depth, kind, self.starts_as_first_victim(kind), limit)
        return True

    def turn_of(self, prompt: list[Token]) -> int:
        """How far its conversation is, by the full pages of earlier sequences."""
        ends = {len(s) - len(s) % PAGE for s in self.seen if starts_with_pages_of(prompt, s)}
        return min(2, len(ends))

    def touch(self, r: int, path: list[Position], matched: int, hit: int) -> None:
        if hit:
            state = path[hit].state
            self.density.event(state, path[hit].is_leaf, r, is_hit=True)
            self.use(state, r)
            state.hits += 1
            state.is_first_victim = False
            self.used_kinds.add(state.kind)
            self.consumed.add(state)
            for position in path[1 : hit + 1]:
                self.out.kv_tokens_used += not position.was_hit
                position.was_hit = True
        if self.policy.refresh == "path":
            for position in path[1 : matched + 1]:
                if position.state is not None:
                    self.use(position.state, r)

    def renew(self, state: State, kind: Kind, r: int) -> None:
        self.use(state, r)
        if state.is_first_victim:
            state.kind = kind
            state.is_first_victim = self.starts_as_first_victim(kind)

    def use(self, state: State, r: int) -> None:
        state.last, state.base = r, self.inflation

    def starts_as_first_victim(self, kind: Kind) -> bool:
        wanted = self.admission.first_victims and kind in FIRST_KINDS
        return wanted and kind not in self.used_kinds

    def insert(self, run: Running, end: int) -> None:
        """Make the KV up to ``end`` resident, and pin it."""
        self.out.kv_tokens_inserted += self.tree.insert(run.sequence[:end])
        if end > len(run.path) - 1:
            run.path = self.tree.path(run.sequence[:end])

    def take(self, run: Running, depth: int, kind: Kind, is_first: bool, limit: int) -> None:
        """A new state; beyond ``limit`` it is only reserved."""
        if depth > limit:
            run.later.append((depth, kind, is_first))
            return
        state = State(kind, run.request, is_first, turn=run.turn)
        self.use(state, run.request)
        run.path[depth].state = state
        run.made.append(depth)
        self.density.append(state)
        self.out.states_made += 1

    def make_room_for_extra(self, run: Running, depth: int) -> bool:
        """Step 8 for one state: whether it may be taken."""
        r = run.request
        while not self.one_more_state_fits():
            victim = self.first_victim(r)
            if victim is None:
                victim = self.beaten(run, depth)
            if victim is None:
                return False
            self.evict(victim, r)
        return True

    def one_more_state_fits(self) -> bool:
        tokens, states = self.used()
        return self.fits(tokens, states + 1)

    def beaten(self, run: Running, depth: int) -> Position | None:
        """The next ordinary victim, if a new state at ``depth`` is worth more."""
        r = run.request
        if self.policy.kind not in ("lru", "utility", "marconi"):
            return None
        victim = self.pick_ordinary(self.choosing_at(run))
        if victim is None:
            return None
        above = max(
            [p.depth for p in run.path[:depth] if p.state is not None]
            + [other for other, _, _ in run.later if other < depth],
            default=0,
        )
        segment = depth - above
        saved = self.costs.prefill_flops(depth) - self.costs.prefill_flops(above)
        freed = self.costs.state_bytes + self.costs.kv_bytes_per_token * segment
        own = Candidate(depth, r, 0, saved, freed, superseded=False, segment=segment)
        own_loss, loss = losses(self.policy, [own, victim], r + 1)
        return victim.position if own_loss > loss else None

    def choosing_at(self, run: Running) -> int:
        """The time at which ``run`` weighs victims."""
        return run.request

    def finish(self, run: Running) -> None:
        """What was reserved enters; step 9."""
        run.reserved_tokens, later, run.later = 0, sorted(run.later), []
        self.insert(run, run.kv_end)
        for depth, kind, is_first in later:
            if run.path[depth].state is None:
                self.take(run, depth, kind, is_first, limit=depth)
        self.running.remove(run)
        self.free_tip(run.path[-1])
        if self.admission.max_states_per_path and run.made:
            self.cap_path(run)

    def cap_path(self, run: Running) -> None:
        pinned = self.positions_with_pinned_states()
        states = [position for position in run.path if position.state is not None]
        states = [position for position in states if position.depth <= max(run.made)]
        left = len(states)
        for position in states[:-1]:
            if left <= self.admission.max_states_per_path:
                break
            if position not in pinned and len(position.kin) == 1:
                self.evict(position, self.choosing_at(run))
                left -= 1

    def outcome(self) -> Outcome:
        out = self.out
        out.kv_tokens, states = self.used()
        out.states = sorted(position.depth for position in self.tree.with_states())
        out.used_bytes = self.bytes_of(out.kv_tokens, states)
        out.state_evictions = len(out.victims)
        out.states_used = len(self.consumed)
        return out

"""Reference replay of two pools: docs/simulator.md, "Two pools", token by token."""

from __future__ import annotations

from sglang_hybrid.core.checkpoints import Kind

from .reference import Replay
from .reference_admission import plan_output, plan_prompt
from .reference_cache import Running
from .reference_tree import Position, State, expand


class PoolReplay(Replay):
    """Where a budget is a pair of pools, KV stays until its own pool needs the room."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.tree.root.counts_live_only = True
        self.locked_state: State | None = None  # that from which a request is copied

    # ---- one request ----

    def start(self, r: int, split: bool) -> bool:
        sequence = expand(self.trace, r)
        input_len, system_len = int(self.trace.input_len[r]), int(self.trace.system_len[r])
        path = self.tree.path(sequence[:input_len])
        matched = len(path) - 1
        hit = max((p.depth for p in path[:input_len] if p.state is not None), default=0)
        run = Running(
            r, sequence, self.turn_of(sequence[:input_len]), path[: hit + 1], len(sequence)
        )
        self.running.append(run)
        tokens = len(sequence) - hit + len(self.pinned()) + self.private_tokens()
        slots = self.working_slots() + 1 + (hit > 0)
        fits = tokens <= self.budget.kv_tokens and slots <= self.budget.state_slots
        if not fits and len(self.running) > 1:
            self.running.remove(run)
            return False
        only_continues = matched < input_len and not path[matched].children
        wanted = plan_prompt(
            self.admission,
            sequence,
            input_len,
            matched,
            hit,
            system_len,
            self.seen,
            Kind.DECODE_END if only_continues else Kind.BRANCH,
        )
        self.out.hits.append(hit)
        self.out.matched.append(matched)
        self.out.rejected.append(not fits)
        if hit:
            self.locked_state = path[hit].state
            if fits:
                assert self.one_slot(r)
        self.seen.append(sequence)
        self.touch(r, path, matched, hit)
        if fits:
            if not hit:
                assert self.one_slot(r + 1)
            run.works = True
            self.prefill(run, wanted, input_len)
            self.reserve_output(run, input_len)
        self.locked_state = None
        return True

    def prefill(self, run: Running, wanted: list[tuple[int, Kind]], input_len: int) -> None:
        r, at = run.request, len(run.path) - 1
        for depth, kind in [*wanted, (input_len, None)]:
            self.allocate(run, depth - at)
            at = depth
            takes = kind is not None and self.may_take(run, depth, kind)
            if takes or (depth == input_len and not self.admission.truncate):
                self.insert_path(run, depth)
                if takes:
                    self.put_state(run, depth, kind, r)
                self.locked_state = None

    def reserve_output(self, run: Running, input_len: int) -> None:
        self.allocate(run, len(run.sequence) - input_len)
        run.output = plan_output(self.admission, run.sequence, input_len)
        for _ in run.output[:-1]:
            if not self.one_slot(run.request + 1):
                break
            run.reserved_states += 1

    def finish(self, run: Running) -> None:
        if run.works:
            end = len(run.sequence)
            if self.admission.truncate:
                end = max((depth for depth, _ in run.output), default=0)
            self.insert_path(run, end)
            for i, (depth, kind) in enumerate(run.output):
                if i < run.reserved_states or i == len(run.output) - 1:
                    self.put_state(run, depth, kind, run.request)
        self.running.remove(run)
        if self.admission.max_states_per_path and run.made:
            self.cap_path(run)

    # ---- slots ----

    def positions_with_pinned_states(self) -> set[Position]:
        return set()  # at the end of a request

    def working_slots(self) -> int:
        return sum(run.works + run.reserved_states for run in self.running)

    def slot_is_free(self) -> bool:
        used = len(self.tree.with_states()) + self.working_slots()
        return used < self.budget.state_slots

    def one_slot(self, now: int) -> bool:
        """A free slot, by eviction if need be."""
        if not self.slot_is_free():
            victim = self.first_victim(now)
            if victim is None:
                ordinary = self.pick_ordinary(now)
                victim = None if ordinary is None else ordinary.position
            if victim is None:
                return False
            self.evict(victim, now)
        return True

    def may_take(self, run: Running, depth: int, kind: Kind) -> bool:
        """Whether a planned state is taken; if so, its slot is free."""
        if not (self.admission.first_victims and kind in (Kind.PROMPT_END, Kind.CHUNK)):
            return self.one_slot(run.request + 1)
        if self.slot_is_free():
            return True
        victim = self.first_victim(run.request + 1)
        if victim is None:
            victim = self.beaten(run, depth)
        if victim is None:
            return False
        self.evict(victim, run.request + 1)
        return True

    def choosing_at(self, run: Running) -> int:
        return run.request + 1

    def pick_ordinary(self, r: int, leaves: bool = False):
        found = self.pick_candidate(r, leaves)
        if found is None and not leaves:
            self.are_spared = True
            found = self.pick_candidate(r, leaves)
            self.are_spared = False
        return found

    def pick_candidate(self, r: int, leaves: bool):
        if self.policy.kind == "density" and not self.ordinary(leaves):
            self.density.draws(lambda state: False)
        return super().pick_ordinary(r, leaves)

    are_spared = False  # looking among those with too many children

    def ordinary(self, leaves: bool = False) -> list[Position]:
        locked = self.pinned() if leaves else set()
        most = {"single_child": 1, "leaf": 0, "any": 10**9}[self.policy.candidates]
        return [
            p
            for p in self.tree.with_states()
            if p.state is not self.locked_state
            and p not in locked
            and not (p.state.is_first_victim and len(p.kin) <= 1)
            and ((len(p.kin) > most) if self.are_spared else len(p.kin) <= (0 if leaves else most))
        ]

    def first_victims(self, leaves: bool) -> list[Position]:
        locked = self.pinned() if leaves else set()
        return [
            p
            for p in self.tree.with_states()
            if p.state.is_first_victim
            and p.state is not self.locked_state
            and p not in locked
            and len(p.kin) <= (0 if leaves else 1)
        ]

    def evict(self, position: Position, now: int) -> None:
        """The state goes; its KV stays, but for SGLang's own order of KV."""
        state, clock = position.state, now - 1
        self.density.event(state, position.is_leaf, clock, is_hit=False)
        self.density.remove(state)
        self.out.victims.append((clock, position.depth, position.is_leaf))
        was_leaf, position.state = position.is_leaf, None
        if self.policy.kv_lru and was_leaf:
            self.free_tip(position)

    def put_state(self, run: Running, depth: int, kind: Kind, r: int) -> None:
        state = run.path[depth].state
        if state is not None:
            self.renew(state, kind, max(r, state.last))
        else:
            self.take(run, depth, kind, self.starts_as_first_victim(kind), limit=depth)

    # ---- KV ----

    def private_tokens(self) -> int:
        return sum(run.private_tokens for run in self.running)

    def allocate(self, run: Running, tokens: int) -> None:
        """Room in the KV pool that nobody else can take."""
        while (
            sum(1 for _ in self.tree.positions()) + self.private_tokens() + tokens
            > self.budget.kv_tokens
        ):
            self.evict_kv(run.request + 1)
        run.private_tokens += tokens

    def evict_kv(self, now: int) -> None:
        """The next victim of the KV pool goes, with all above it that leads nowhere else."""
        locked = self.pinned()
        evidence = [
            p
            for p in self.tree.positions()
            if not p.children and p.state is None and p not in locked
        ]
        if evidence:
            victim = min(evidence, key=lambda p: (p.made, p.depth))
        elif self.policy.kv_lru:
            leaves = self.ordinary(leaves=True) + self.first_victims(leaves=True)
            victim = min(leaves, key=lambda leaf: (self.last_pass(leaf), leaf.depth))
        else:
            victim = self.first_victim(now, leaves=True) or self.pick_ordinary(now, True).position
        if victim.state is not None:
            self.evict(victim, now)
        if not victim.is_gone:
            self.free_tip(victim)

    def insert_path(self, run: Running, end: int) -> None:
        """The request's KV up to ``end`` enters, and its lock moves there."""
        known = len(run.path) - 1
        if end <= known:
            return
        new = self.tree.insert(run.sequence[:end])
        self.out.kv_tokens_inserted += new
        run.private_tokens -= end - known
        run.path = self.tree.path(run.sequence[:end])
        for position in run.path[end - new + 1 :]:
            position.made = run.request

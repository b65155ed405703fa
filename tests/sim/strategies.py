"""Random small replays, rich in shared prefixes, forks, evictions and rejections.

`random_case(seed)` gives the same case for the same seed, on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.trace import Trace, TraceBuilder

from .reference import Schedule

POLICIES = ("lru", "utility", "marconi", "gdsf", "seglen", "tlru", "density")


@dataclass(frozen=True)
class PrefillTime:
    """Seconds of a prefill, exact in binary."""

    per_token: float = 0.25
    fixed: float = 0.5

    def __call__(self, tokens: int, hit: int) -> float:
        return self.fixed + self.per_token * (tokens - hit)


@dataclass(frozen=True)
class Case:
    """The arguments of `replay`."""

    trace: Trace
    costs: ModelCosts
    policy: PolicySpec
    admission: Admission
    budget: Budget | None
    schedule: Schedule | None
    prefill_seconds: PrefillTime

    def replay(self, implementation):
        return implementation(
            self.trace,
            self.costs,
            self.policy,
            self.admission,
            self.budget,
            schedule=self.schedule,
            prefill_seconds=self.prefill_seconds,
        )


def random_case(
    seed: int,
    *,
    concurrent: bool | None = None,
    policy: str | None = None,
    requests: int | None = None,
) -> Case:
    """A case; ``concurrent`` None: sometimes; ``policy`` None: any kind.

    ``requests`` None: 4 to 30. Density first learns after 32 hits and evictions and
    first forgets after 512, for which some 50 and 800 requests are needed.
    """
    random = Random(seed)
    trace = random_trace(random, requests)
    costs = random_costs(random)
    budget = random_budget(random, trace, costs)
    spec = random_policy(random, policy)
    admission = random_admission(random)
    schedule = Schedule(random.choice([1, 2, 3, 5]), random.choice([0.0, 0.125, 0.5]))
    if concurrent is None:
        concurrent = random.random() < 0.35
    return Case(
        trace, costs, spec, admission, budget, schedule if concurrent else None, PrefillTime()
    )


def random_trace(random: Random, requests: int | None = None) -> Trace:
    """Conversations that go on, restart elsewhere, repeat; some share a system message."""
    width = random.choice([1, 1, 3, 4])
    count = requests or random.choice([4, 10, 20, 30])
    longest = 32 // width + 8  # symbols
    alphabet = random.choice([2, 3, 50])
    systems = [symbols(random, alphabet, random.randint(1, 6)) for _ in range(2)]
    builder = TraceBuilder("random", width)
    history: list[tuple[list[int], str, int | None]] = []  # sequence, session, system tokens
    with_arrivals = random.random() < 0.8
    arrival = 0.0
    while len(builder) < count:
        session, system_len = f"s{len(builder)}", None
        choice = random.random()
        if history and choice < 0.75:
            if random.random() < 0.6:
                full, session, system_len = random.choice(history[-4:])
            else:
                full, _, system_len = random.choice(history)
            if choice < 0.4:
                known = list(full)  # a conversation goes on
            elif choice < 0.65:
                known = full[: random.randint(1, len(full))]  # leaves it somewhere
            else:
                known = full[: random.randint(max(1, len(full) - 2), len(full))]
        else:
            known = list(random.choice(systems))
            system_len = len(known) * width if random.random() < 0.7 else None
        new = symbols(random, alphabet, random.choice([0, 1, 1, 2, 3, 5]))
        full = (known + new)[:longest]
        total = len(full) * width - random.randrange(width)
        output_len = min(random.choice([0, 1, 1, 2, 4, 9]), total - 1)
        input_len = total - output_len
        if system_len is not None and system_len > input_len:
            system_len = None
        arrival += random.choice([0.0, 0.5, 2.0, 10.0])
        builder.add(
            full,
            input_len,
            output_len,
            session=session if random.random() < 0.9 else None,
            arrival=arrival if with_arrivals else None,
            system_len=system_len,
        )
        history.append((full, session, system_len))
    return builder.build()


def symbols(random: Random, alphabet: int, count: int) -> list[int]:
    return [random.randrange(alphabet) for _ in range(count)]


def random_costs(random: Random) -> ModelCosts:
    """Sums of these are exact in binary."""
    return ModelCosts(
        kv_bytes_per_token=random.choice([0.0, 1.0, 2.0, 2.5, 3.0, 8.0]),
        state_bytes=random.choice([5.0, 12.0, 30.5, 60.0]),
        flops_linear=random.choice([1.0, 7.0, 100.0]),
        flops_quadratic=random.choice([0.0, 0.5, 3.0]),
    )


def random_budget(random: Random, trace: Trace, costs: ModelCosts) -> Budget | None:
    """Room for one to eight sequences of average length, mostly."""
    total = trace.input_len + trace.output_len
    tokens = float(total.mean())
    size = random.choice([0.6, 1.2, 2.0, 3.0, 5.0, 8.0])
    states = random.choice([1, 2, 3])
    choice = random.random()
    if choice < 0.04:
        return None
    if choice < 0.7:
        return Budget(size * (costs.kv_bytes_per_token * tokens + costs.state_bytes * states))
    slots = max(1, int(size * states * random.choice([0.5, 1.0, 2.0])))
    kv_tokens = int(size * tokens) + 1
    return Budget(
        costs.kv_bytes_per_token * kv_tokens + costs.state_bytes * slots, slots, kv_tokens
    )


def random_policy(random: Random, kind: str | None = None) -> PolicySpec:
    return PolicySpec(
        kind or random.choice(POLICIES),
        alpha=random.choice([0.0, 0.25, 0.5, 1.0, 4.0]),
        recency=random.choice(["linear", "hyperbolic"]),
        cost=random.choice(["flops", "one"]),
        weight=random.choice([0.0, 0.5, 0.85, 1.0]),
        threshold=random.choice([0, 2, 6, 20]),
        seed=random.randrange(2**63),
        bucket_width=random.choice([0.0, 0.25, 0.25, 1.0]),
        candidates=random.choice(["single_child", "single_child", "leaf", "any"]),
        refresh=random.choice(["consumed", "consumed", "path"]),
        kv_lru=random.random() < 0.3,
    )


def random_admission(random: Random) -> Admission:
    def sometimes(*values: int, chance: float = 0.5) -> int:
        return random.choice(values) if random.random() < chance else 0

    chosen = {
        "branch": sometimes(1, 1, 2, 4, chance=0.8),
        "branch_full": random.random() < 0.5,
        "decode_end": sometimes(1, 1, 2, 4, chance=0.8),
        "prompt_end": sometimes(1, 2, 4),
        "ghost_forks": sometimes(1, 2, chance=0.4),
        "ghost_self": random.random() < 0.5,
        "system_end": random.random() < 0.3,
        "min_gain_tokens": random.choice([1, 1, 1, 3, 6]),
        "chunk_tokens": sometimes(5, 8, chance=0.4),
        "chunk_or_branch": random.random() < 0.5,
        "block_tokens": sometimes(2, 4, 8, chance=0.15),
        "truncate": random.random() < 0.3,
        "first_victims": random.random() < 0.5,
        "max_states_per_path": sometimes(1, 2, 3, chance=0.3),
    }
    if chosen["first_victims"]:
        chosen["block_tokens"] = 0
    if not any(chosen[k] for k in ("branch", "decode_end", "prompt_end", "chunk_tokens")):
        chosen["decode_end"] = 1
    return Admission(**chosen)

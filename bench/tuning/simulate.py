"""The same streams in the simulator, to choose their parameters and to compare with servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.tuning.streams import Stream
from bench.tuning.workloads import Pools
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim import tuning
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.union_tree import compile_trace

WINDOW = 100
POLICIES = (
    "lru",
    "utility",
    "utility:alpha=1",
    "marconi:alpha=0.5",
    "marconi:alpha=2",
    "marconi:alpha=8",
    "density",
    "auto",
    "offline",
)


@dataclass(frozen=True)
class Replayed:
    """What a replay came to.

    Attributes:
        hit_rate: tokens hit, of all prompt tokens.
        saved: prefill FLOPs saved, of those of all prompts.
        windows: hit rate of every hundred requests.
        switches: what came into force, and from which request on.
    """

    hit_rate: float
    saved: float
    windows: tuple[float, ...]
    switches: tuple[tuple[int, str], ...]


def costs_of(model: Path) -> ModelCosts:
    """Costs on the CPU platform, which keeps everything in float32."""
    return load_model(str(model), kv_dtype="float32", conv_dtype="float32").costs


def simulate(
    stream: Stream,
    costs: ModelCosts,
    pools: Pools | None,
    policies: Sequence[str] = POLICIES,
    admission: str = "shipped",
    replies: Sequence[Sequence[int]] | None = None,
) -> dict[str, Replayed]:
    """Replay ``stream`` under each policy; ``pools`` None is a cache without limit."""
    tree = compile_trace(stream.trace(replies))
    budget = None
    if pools is not None:
        size = costs.held_bytes(pools.kv_tokens, pools.state_slots)
        budget = Budget(size, pools.state_slots, pools.kv_tokens)
    found = {}
    for policy in policies:
        done = tuning.run(
            tree, costs, tuning.parse_strategy(policy), parse_admission(admission), budget
        )
        hits = done.replay.served.hits
        found[policy] = Replayed(
            float(hits.sum() / tree.input_len.sum()),
            tuning.saved_flops(costs, hits) / tuning.saved_flops(costs, tree.input_len),
            tuple(windows(tree.input_len.tolist(), hits.tolist())),
            tuple((switch.request, switch.arm) for switch in done.switches),
        )
    return found


def windows(prompt_tokens: Sequence[int], hits: Sequence[int], size: int = WINDOW) -> list[float]:
    """Token hit rate of every ``size`` requests; the last window may be shorter."""
    return [
        sum(hits[start : start + size]) / sum(prompt_tokens[start : start + size])
        for start in range(0, len(hits), size)
    ]

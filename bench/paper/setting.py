"""What the experiments share: models, traces, and the systems that are compared."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.replays import Workload, load_workload, trace_path
from sglang_hybrid.core.attention_costs import attention
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.feed_forward_costs import mlp
from sglang_hybrid.core.paper import paper_ssm
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.prefill_time import DEVICES, PrefillTime


class System(NamedTuple):
    """One of the compared caches."""

    policy: str
    admission: str


SYSTEMS = {
    "vLLM+": System("lru", "block"),
    "vLLM+, leaves only": System("sglang+", "block"),
    "SGLang+": System("sglang+", "marconi"),
    "LRU": System("lru", "marconi"),
    "Marconi": System("marconi:alpha=tuned:bucket_width=0", "marconi"),
    "utility": System("utility", "marconi"),
    "auto": System("auto", "ghost"),
    "offline": System("offline", "marconi"),
}
"""Per-block checkpoints twice: with LRU over all states, which may go before their KV (the
stronger baseline), and with whole blocks going from the tail on, as vLLM frees them."""

BEST = "Marconi, in hindsight"
"""With the best alpha and form of recency for each cell: what its tuner could reach at most."""


class Sample(NamedTuple):
    """A trace as far as an experiment uses it, and what it stands for."""

    trace: str
    limit: int | None
    block: int

    def admission(self, system: System) -> str:
        """That of ``system``, with the block size that suits the length of the trace."""
        if system.admission == "block":
            return f"block:block_tokens={self.block}"
        return system.admission


SAMPLES = (
    Sample("taubench", None, 32),
    Sample("mooncake", 2000, 128),
    Sample("miniswe", 1500, 32),
    Sample("weka", 700, 32),
)
"""Of the long traces only the start: per-block checkpoints make a node for every block. Larger
blocks hold fewer states, which favours the baseline."""

PAPER_7B = load_model("paper-7b").costs
JAMBA = load_model("jamba-1.5-mini").costs
_JAMBA_WEIGHT_BYTES = 51.6e9 * 2  # all experts are read, in BF16
_GPUS = 4


def jamba_prefill() -> PrefillTime:
    """Jamba-1.5-Mini on four A100 at 40 % of their peak."""
    device = DEVICES["a100"]
    assert device.bandwidth is not None
    return PrefillTime.roofline(
        JAMBA,
        peak_flops=_GPUS * device.peak_flops,
        weight_bytes=_JAMBA_WEIGHT_BYTES,
        bandwidth=_GPUS * device.bandwidth,
    )


def load_sample(folder: Path, sample: Sample) -> Workload:
    return load_workload(trace_path(folder, sample.trace), limit=sample.limit)


def costs_of(attention_layers: int, ssm_layers: int, state_dim: int) -> ModelCosts:
    """A hybrid in the paper's form, with an MLP behind every mixer."""
    hidden, heads = 4096, 32
    layers = [attention(hidden, heads, heads, hidden // heads, 2)] * attention_layers
    layers += [paper_ssm(hidden, state_dim)] * ssm_layers
    layers += [mlp(hidden, 4 * hidden, 2)] * (attention_layers + ssm_layers)
    return ModelCosts.of(layers)

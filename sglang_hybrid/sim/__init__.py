"""Replay of request traces: what a cache would do, without a GPU, torch or SGLang.

from sglang_hybrid.sim import load_trace, sweep
for result in sweep(load_trace("gen:shared-prefix"), "nemotron-h-8b", budgets=["6GiB"]):
    print(result.policy, result.token_hit_rate)
"""

# Not on demand: two functions have the names of their modules, which would come to stand
# for them once one of these was imported.
from sglang_hybrid.sim.recommend import Recommendation, recommend
from sglang_hybrid.sim.results import Bound, ReplayResult
from sglang_hybrid.sim.sweep import sweep, sweep_bounds
from sglang_hybrid.sim.traces import load_trace, write_trace
from sglang_hybrid.sim.workload import Concurrency, Workload

__all__ = [
    "Bound",
    "Concurrency",
    "Recommendation",
    "ReplayResult",
    "Workload",
    "load_trace",
    "recommend",
    "sweep",
    "sweep_bounds",
    "write_trace",
]

"""What all replays of one comparison share: the trace, the model, and how time passes."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import Model, load_model
from sglang_hybrid.sim.prefill_time import PrefillTime, parse_prefill_time
from sglang_hybrid.sim.trace import FloatArray, Trace
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.union_tree import UnionTree, compile_trace

DEFAULT_PREFILL_TIME = "roofline:h100"


@dataclass(frozen=True)
class Concurrency:
    """Requests run side by side (docs/simulator.md, "Concurrent replay").

    Attributes:
        max_running: requests that may run at once.
        seconds_per_output_token: of one running request.
    """

    max_running: int
    seconds_per_output_token: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= 1_000_000:
            raise ValueError(
                f"{self.max_running} concurrent requests are not allowed; allowed: an integer "
                "from 1 to 1000000"
            )
        if not 0 <= self.seconds_per_output_token <= 3600:
            raise ValueError(
                f"{self.seconds_per_output_token!r} seconds per output token are not allowed; "
                "allowed: a number from 0 to 3600"
            )


@dataclass(frozen=True, eq=False)
class Workload:
    """A compiled trace, and a model with its prefill times.

    Attributes:
        trace, model: names, for reports.
        arrival: seconds, NaN where unknown. float64[R].
        concurrency: None: each request ends before the next starts.
    """

    trace: str
    model: str
    costs: ModelCosts
    tree: UnionTree
    arrival: FloatArray
    prefill: PrefillTime
    concurrency: Concurrency | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @classmethod
    def of(
        cls,
        trace: Trace | str,
        model: Model | ModelCosts | str,
        *,
        prefill_time: PrefillTime | str = DEFAULT_PREFILL_TIME,
        concurrent: Concurrency | None = None,
    ) -> Workload:
        """Compile ``trace``.

        Args:
            trace: or what `load_trace` takes for a path.
            model: or the name of a preset, the path of a ``config.json``.
            prefill_time: or what `parse_prefill_time` reads.

        Raises:
            ValueError: a name or path that is not known.
        """
        if isinstance(model, str):
            model = load_model(model)
        name, costs = (model.name, model.costs) if isinstance(model, Model) else ("custom", model)
        if isinstance(prefill_time, str):
            prefill_time = parse_prefill_time(prefill_time, costs)
        if isinstance(trace, str):
            trace = load_trace(trace)
        tree = compile_trace(trace)
        return cls(trace.name, name, costs, tree, trace.arrival, prefill_time, concurrent)

"""How long a prefill takes, for the TTFT of a replay.

T(L) are the seconds to prefill L tokens from nothing, a piecewise linear table. With the
first ``hit`` tokens cached a prefill takes ``overhead + max(T(in) - T(hit), floor)``.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.trace import FloatArray


class Device(NamedTuple):
    """Peak dense BF16 FLOP/s, and bytes/s of the memory that holds the weights, if known."""

    peak_flops: float
    bandwidth: float | None


# NVIDIA's data sheets, without their factor of two for sparsity: H100 SXM (80 GB), H200 SXM
# (141 GB), A100 SXM (80 GB), L4. `cpu-small` is no product: 4 cores at 2 GHz with two AVX-512
# units for FP32 each, and two channels of memory.
DEVICES: Mapping[str, Device] = {
    "h100": Device(989.4e12, 3.35e12),
    "h200": Device(989.4e12, 4.8e12),
    "a100": Device(312e12, 2.039e12),
    "l4": Device(121e12, 300e9),
    "cpu-small": Device(0.512e12, 40e9),
}

DEFAULT_UTILISATION = 0.4
DEFAULT_OVERHEAD_SECONDS = 0.005  # scheduling, tokenising, and the launch of one forward pass
_BYTES_PER_WEIGHT = 2  # BF16
# Dense enough that the chords of a square are within 0.05 %.
_TABLE_TOKENS = np.unique(np.round(np.geomspace(1, 2**21, 400)))


@dataclass(frozen=True, eq=False)
class PrefillTime:
    """Seconds of a prefill.

    Attributes:
        tokens: lengths at which T is given, rising from 0. float64[K], K >= 2.
        cumulative_seconds: T there, never falling, 0 at 0 tokens. float64[K].
        overhead_seconds: of every prefill, whatever its length.
        floor_seconds: the least that the computation takes, however few tokens there are.
    """

    tokens: FloatArray
    cumulative_seconds: FloatArray
    overhead_seconds: float = 0.0
    floor_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("overhead_seconds", "floor_seconds"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} {value!r} is not allowed; allowed: finite and >= 0")
        if len(self.tokens) < 2 or len(self.tokens) != len(self.cumulative_seconds):
            raise ValueError("a table of prefill times needs two or more points")
        if self.tokens[0] != 0 or self.cumulative_seconds[0] != 0:
            raise ValueError("a table of prefill times starts with 0 tokens and 0 seconds")
        rising = (np.diff(self.tokens) > 0).all()
        if not rising or not (np.diff(self.cumulative_seconds) >= 0).all():
            raise ValueError("in a table of prefill times tokens rise and seconds never fall")

    @classmethod
    def roofline(
        cls,
        costs: ModelCosts,
        *,
        peak_flops: float,
        utilisation: float = DEFAULT_UTILISATION,
        overhead_seconds: float = DEFAULT_OVERHEAD_SECONDS,
        weight_bytes: float | None = None,
        bandwidth: float | None = None,
    ) -> PrefillTime:
        """Computation at a share of the peak, but at least one read of the weights.

        Args:
            utilisation: share of ``peak_flops`` (FLOP/s) that prefill reaches.
            weight_bytes: of all weights; None: one BF16 weight for every two FLOPs per
                token (too few for a mixture of experts).
            bandwidth: bytes/s at which weights are read; None: reading costs nothing.

        Raises:
            ValueError: names the value and what is allowed.
        """
        _require_positive("peak_flops", peak_flops)
        if not 0 < utilisation <= 1:
            raise ValueError(
                f"utilisation {utilisation!r} is not allowed; allowed: above 0, at most 1"
            )
        floor = 0.0
        if bandwidth is not None:
            _require_positive("bandwidth", bandwidth)
            if weight_bytes is None:
                weight_bytes = costs.flops_linear / 2 * _BYTES_PER_WEIGHT
            _require_positive("weight_bytes", weight_bytes)
            floor = weight_bytes / bandwidth
        tokens = np.concatenate(([0.0], _TABLE_TOKENS))
        flops = (costs.flops_linear + costs.flops_quadratic * tokens) * tokens
        return cls(tokens, flops / (peak_flops * utilisation), overhead_seconds, floor)

    @classmethod
    def from_csv(cls, path: str | Path) -> PrefillTime:
        """Measured: a header ``tokens,seconds``, then one length a line, rising.

        A measurement includes the overhead of its prefill. What the line through the first
        two points leaves at 0 tokens, if positive, is taken for that overhead.

        Raises:
            ValueError: names the file, the line and the value.
        """
        points = _read_points(Path(path))
        (n0, s0), (n1, s1) = points[:2]
        overhead = max(0.0, s0 - (s1 - s0) / (n1 - n0) * n0)
        tokens = np.array([0.0] + [n for n, _ in points])
        seconds = np.array([0.0] + [s - overhead for _, s in points])
        return cls(tokens, seconds, overhead)

    def seconds(self, input_len: ArrayLike, hit: ArrayLike) -> FloatArray:
        """Of prefills of ``input_len`` tokens, the first ``hit`` of them cached."""
        computed = self._from_nothing(input_len) - self._from_nothing(hit)
        result: FloatArray = self.overhead_seconds + np.maximum(computed, self.floor_seconds)
        return result

    def table(self) -> tuple[FloatArray, FloatArray]:
        """T as (tokens, seconds); beyond the last point it goes on with the last slope."""
        return self.tokens, self.cumulative_seconds

    def _from_nothing(self, lengths: ArrayLike) -> FloatArray:
        tokens, seconds = self.tokens, self.cumulative_seconds
        lengths = np.asarray(lengths, dtype=np.float64)
        slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])
        beyond = np.maximum(lengths - tokens[-1], 0.0) * slope
        result: FloatArray = np.interp(lengths, tokens, seconds) + beyond
        return result


def parse_prefill_time(text: str, costs: ModelCosts) -> PrefillTime:
    """`roofline:DEVICE_OR_FLOPS[:utilisation=U][:overhead=SECONDS]` or `csv:FILE`.

    Raises:
        ValueError: names the value, what is allowed, and the closest name.
    """
    kind, _, rest = text.partition(":")
    if kind == "csv" and rest:
        return PrefillTime.from_csv(rest)
    if kind != "roofline" or not rest:
        raise ValueError(
            f"prefill time {text!r} is not allowed; allowed: roofline:DEVICE, roofline:FLOPS "
            "(both with :utilisation=U and :overhead=SECONDS), csv:FILE"
        )
    name, *options = rest.split(":")
    values = {"utilisation": DEFAULT_UTILISATION, "overhead": DEFAULT_OVERHEAD_SECONDS}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values:
            raise ValueError(
                f"prefill time {text!r}: {option!r} is not KEY=VALUE with a known key; allowed "
                f"keys: {', '.join(values)}"
            )
        values[key] = _number(text, key, value)
    device = _device(text, name)
    try:
        return PrefillTime.roofline(
            costs,
            peak_flops=device.peak_flops,
            utilisation=values["utilisation"],
            overhead_seconds=values["overhead"],
            bandwidth=device.bandwidth,
        )
    except ValueError as error:
        raise ValueError(f"prefill time {text!r}: {error}") from None


def _device(text: str, name: str) -> Device:
    if name in DEVICES:
        return DEVICES[name]
    try:
        return Device(float(name), None)
    except ValueError:
        close = difflib.get_close_matches(name, DEVICES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"prefill time {text!r}: unknown device {name!r}; allowed: {', '.join(DEVICES)}, or "
            f"peak FLOP/s{hint}"
        ) from None


def _number(text: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(
            f"prefill time {text!r}: {key} = {value!r} is not allowed; allowed: a number"
        ) from None


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} {value!r} is not allowed; allowed: finite and > 0")


def _read_points(path: Path) -> list[tuple[float, float]]:
    """Lengths and seconds of a measured table, checked."""
    with path.open(newline="") as file:
        rows = csv.reader(file)
        header = [cell.strip() for cell in next(rows, [])]
        if header != ["tokens", "seconds"]:
            raise ValueError(
                f"{path}, line 1: header {','.join(header)!r} is not allowed; allowed: "
                "'tokens,seconds'"
            )
        points: list[tuple[float, float]] = []
        for row in rows:
            if row:
                before = points[-1] if points else (0.0, 0.0)
                points.append(_point(f"{path}, line {rows.line_num}", row, before))
    if len(points) < 2:
        raise ValueError(f"{path}: {len(points)} lines of measurements; at least 2 are needed")
    return points


def _point(where: str, row: list[str], before: tuple[float, float]) -> tuple[float, float]:
    try:
        tokens, seconds = map(float, row)
    except ValueError:
        raise ValueError(
            f"{where}: {','.join(row)!r} is not allowed; allowed: two numbers"
        ) from None
    if not before[0] < tokens < float("inf"):
        raise ValueError(
            f"{where}: tokens {row[0].strip()} is not allowed; allowed: more than {before[0]:g}"
        )
    if not (before[1] <= seconds < float("inf") and seconds > 0):
        raise ValueError(
            f"{where}: seconds {row[1].strip()} is not allowed; allowed: above 0, and at least "
            f"the {before[1]:g} of the line before"
        )
    return tokens, seconds

"""Random inputs of the checkpoint kernels, and what they must return for them.

A case is a dictionary of the keyword arguments of one function. Positions, lengths and rows
are random: several checkpoints may start from one boundary, and a length may be 0.
"""

from typing import Any

import torch
from torch import Tensor

from . import recurrences
from .shapes import DeltaShape, Mamba2Shape

Case = dict[str, Any]

# Log of how much decays are slowed down: a state that forgets within a few tokens would hide errors
# of the boundary state and of early tokens.
SLOW = 3.0


class Maker:
    """Random tensors of one device; `strided` ones have gaps along every axis."""

    def __init__(self, seed: int, device: str = "cpu", strided: bool = False):
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device = device
        self.strided = strided

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        step = 2 if self.strided else 1
        wide = torch.randn(
            *shape[:-1], shape[-1] * step, generator=self.generator, device=self.device
        )
        return wide.to(dtype)[..., ::step]

    def integers(self, low: int, high: int, count: int) -> Tensor:
        """(count,) between `low` and `high`, both included."""
        return torch.randint(low, high + 1, (count,), generator=self.generator, device=self.device)

    def shuffled(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)


def positions(make: Maker, n: int, boundaries: int, tokens: int, chunk: int) -> Case:
    lengths = make.integers(0, min(chunk - 1, tokens), n)
    starts = (
        torch.rand(n, generator=make.generator, device=make.device) * (tokens - lengths + 1)
    ).long()
    return {"h_index": make.integers(0, boundaries - 1, n), "starts": starts, "lengths": lengths}


def mamba2_case(
    make: Maker, shape: Mamba2Shape, n: int, tokens: int, dtype: torch.dtype, h_dtype: torch.dtype
) -> Case:
    boundaries = max(1, n // 2)
    return {
        "h": make.normal(boundaries, *shape.state_shape, dtype=h_dtype),
        **positions(make, n, boundaries, tokens, shape.chunk),
        "x": make.normal(1, tokens, shape.heads, shape.head_dim, dtype=dtype),
        "dt": make.normal(1, tokens, shape.heads, dtype=dtype),
        "A": -torch.exp(make.normal(shape.heads) - SLOW),
        "B": make.normal(1, tokens, shape.groups, shape.d_state, dtype=dtype),
        "dt_bias": make.normal(shape.heads, dtype=dtype).contiguous(),
        "dt_softplus": True,
        "dt_limit": (0.0, float("inf")),
    }


def expected_mamba2(case: Case) -> Tensor:
    """(n, heads, head_dim, d_state), float64."""
    dt = recurrences.mamba2_step(
        case["dt"][0], case["dt_bias"], case["dt_softplus"], case["dt_limit"]
    )

    def state(boundary: Tensor, part: slice) -> Tensor:
        return recurrences.mamba2(
            boundary, case["x"][0, part], dt[part], case["A"], case["B"][0, part]
        )

    return _each(case, state)


def gdn_case(
    make: Maker, shape: DeltaShape, n: int, tokens: int, dtype: torch.dtype, h_dtype: torch.dtype
) -> Case:
    boundaries = max(1, n // 2)
    return {
        "h": make.normal(boundaries, *shape.state_shape, dtype=h_dtype),
        **positions(make, n, boundaries, tokens, shape.chunk),
        "k": make.normal(1, tokens, shape.key_heads, shape.key_dim, dtype=dtype),
        "v": make.normal(1, tokens, shape.value_heads, shape.value_dim, dtype=dtype),
        "g": -torch.exp(make.normal(1, tokens, shape.value_heads) - SLOW),
        "beta": torch.sigmoid(make.normal(1, tokens, shape.value_heads)),
        "use_qk_l2norm_in_kernel": True,
    }


def expected_gdn(case: Case) -> Tensor:
    """(n, value_heads, value_dim, key_dim), float64."""
    return _each(case, lambda *at: _delta_state(case, case["g"][0], case["beta"][0], *at))


def kda_case(
    make: Maker,
    shape: DeltaShape,
    n: int,
    tokens: int,
    dtype: torch.dtype,
    h_dtype: torch.dtype,
    lower_bound: float | None = None,
) -> Case:
    case = gdn_case(make, shape, n, tokens, dtype, h_dtype)
    del case["g"]
    return {
        **case,
        "a": make.normal(1, tokens, shape.key_heads, shape.key_dim, dtype=dtype),
        "beta": make.normal(1, tokens, shape.value_heads, dtype=dtype),
        "beta_is_raw": True,
        "A_log": (make.normal(shape.key_heads) - SLOW).contiguous(),
        "dt_bias": make.normal(shape.key_heads * shape.key_dim).contiguous(),
        "lower_bound": lower_bound,
    }


def expected_kda(case: Case) -> Tensor:
    """(n, heads, value_dim, key_dim), float64."""
    log_decay = recurrences.kda_log_decay(
        case["a"][0], case["A_log"], case["dt_bias"], case["lower_bound"]
    )
    beta = case["beta"][0].double()
    if case["beta_is_raw"]:
        beta = torch.sigmoid(beta)
    return _each(case, lambda *at: _delta_state(case, log_decay, beta, *at))


def _delta_state(
    case: Case, log_decay: Tensor, beta: Tensor, boundary: Tensor, part: slice
) -> Tensor:
    k = case["k"][0, part]
    if case["use_qk_l2norm_in_kernel"]:
        k = recurrences.unit_length(k)
    return recurrences.delta_rule(boundary, k, case["v"][0, part], log_decay[part], beta[part])


def _each(case: Case, state: Any) -> Tensor:
    rows = zip(*(case[name].tolist() for name in ("h_index", "starts", "lengths")), strict=True)
    return torch.stack(
        [state(case["h"][index], slice(start, start + length)) for index, start, length in rows]
    )


def scatter_case(
    make: Maker,
    state_shape: tuple[int, ...],
    dim: int,
    lengths: list[int],
    per_row: int,
    *,
    history: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    state_dtype: torch.dtype = torch.float32,
    transposed: bool = False,
    with_windows: bool = True,
    rounded_states: bool = False,
    spare_slots: int = 2,
) -> Case:
    """`per_row` checkpoints in each of the rows, two rows of padding behind them.

    Free slots hold NaN, so that an element that is not written shows. One checkpoint in five
    is skipped.

    Args:
        transposed: the convolution pool is stored (slots, history, dim), as KDA's.
        rounded_states: states have values that bfloat16 can hold. Triton's interpreter rounds to
            that type towards zero, where a GPU and torch round to nearest.
    """
    count, n = len(lengths), len(lengths) * per_row
    bounds = [sum(lengths[:i]) for i in range(count + 1)]
    total = count + n + spare_slots
    order = make.shuffled(total)
    slots = order[count : count + n].clone()
    slots[make.integers(0, 4, n) == 0] = -1

    gap = 8 if make.strided else 0
    size = torch.Size(state_shape).numel()
    ssm_pool = torch.full((total, size + gap), float("nan"), device=make.device, dtype=state_dtype)
    ssm_pool = ssm_pool[:, :size].unflatten(1, state_shape)
    conv_shape = (total, history, dim) if transposed else (total, dim, history)
    conv_pool = torch.full(conv_shape, float("nan"), device=make.device, dtype=dtype)
    conv_pool = conv_pool.transpose(1, 2) if transposed else conv_pool
    ssm_pool[order[:count]] = make.normal(count, *state_shape, dtype=state_dtype)
    conv_pool[order[:count]] = make.normal(count, dim, history, dtype=dtype)

    rows = torch.arange(count, device=make.device).repeat(per_row)[make.shuffled(n)]
    first, last = (torch.tensor(b, device=make.device)[rows] for b in (bounds[:-1], bounds[1:]))
    behind = (
        torch.rand(n, generator=make.generator, device=make.device) * (last - first + 1)
    ).long()
    # A third lies where the window reaches into what was before the row.
    behind = torch.where(make.integers(0, 2, n) == 0, behind.clamp(max=history - 1), behind)
    ends = (first + behind).clamp(max=last)
    window_index = torch.where((ends - first < history) & (make.integers(0, 3, n) > 0), rows, -1)
    padded = [*bounds, bounds[-1], bounds[-1]]
    states = torch.randn(n, *state_shape, generator=make.generator, device=make.device)
    if rounded_states:
        states = states.bfloat16().float()
    return {
        "conv_pool": conv_pool,
        "ssm_pool": ssm_pool,
        "x": make.normal(bounds[-1], dim, dtype=dtype),
        "query_start_loc": torch.tensor(padded, device=make.device, dtype=torch.int32),
        "rows": rows,
        "ends": ends,
        "slots": slots,
        "states": states,
        "windows": make.normal(count, dim, history, dtype=dtype) if with_windows else None,
        "window_index": window_index if with_windows else None,
    }


def expected_scatter(case: Case) -> tuple[Tensor, Tensor]:
    """Both pools after the call, checkpoint by checkpoint."""
    conv, ssm = case["conv_pool"].clone(), case["ssm_pool"].clone()
    bounds = case["query_start_loc"].tolist()
    for i, slot in enumerate(case["slots"].tolist()):
        if slot < 0:
            continue
        row, end = (int(case[name][i]) for name in ("rows", "ends"))
        ssm[slot] = case["states"][i]
        earlier = None
        if case["windows"] is not None and case["window_index"][i] >= 0:
            earlier = case["windows"][int(case["window_index"][i])]
        conv[slot] = recurrences.conv_window(
            case["x"], bounds[row], end, earlier, conv.shape[2]
        ).to(conv.dtype)
    return conv, ssm


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference, in units of the largest value (at least 1)."""
    if got.shape != want.shape or got.dtype != torch.float32:
        return float("inf")
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1))


def wrong_elements(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> int:
    """Number of elements that differ in any bit; NaN equals NaN."""
    return sum(
        int(((a != b) & ~(a.isnan() & b.isnan())).sum()) for a, b in zip(got, want, strict=True)
    )

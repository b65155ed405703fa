"""Triton kernel of `advance_mamba2`."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _advance_mamba2_kernel(
    out,
    h,
    h_index,
    starts,
    lengths,
    x,
    dt,
    A,
    B,
    dt_bias,
    dt_min,
    dt_max,
    heads_per_group,
    head_dim,
    d_state,
    stride_h_row,
    stride_h_head,
    stride_h_dim,
    stride_h_state,
    stride_x_token,
    stride_x_head,
    stride_x_dim,
    stride_dt_token,
    stride_dt_head,
    stride_A,
    stride_B_token,
    stride_B_group,
    stride_B_state,
    HAS_BIAS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    checkpoint = tl.program_id(2).to(tl.int64)
    state_blocks = tl.cdiv(d_state, BLOCK_STATE)
    dims = (tl.program_id(0) // state_blocks) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    cols = (tl.program_id(0) % state_blocks) * BLOCK_STATE + tl.arange(0, BLOCK_STATE)
    in_state = (dims[:, None] < head_dim) & (cols[None, :] < d_state)

    row = tl.load(h_index + checkpoint).to(tl.int64)
    start = tl.load(starts + checkpoint).to(tl.int64)
    length = tl.load(lengths + checkpoint).to(tl.int32)
    h += row * stride_h_row + head * stride_h_head
    x += start * stride_x_token + head * stride_x_head
    dt += start * stride_dt_token + head * stride_dt_head
    B += start * stride_B_token + (head // heads_per_group) * stride_B_group

    state = tl.load(
        h + dims[:, None] * stride_h_dim + cols[None, :] * stride_h_state, mask=in_state, other=0.0
    ).to(tl.float32)
    a = tl.load(A + head * stride_A).to(tl.float32)
    for first in range(0, length, BLOCK_TOKENS):
        tokens = first + tl.arange(0, BLOCK_TOKENS)
        valid = tokens < length
        step = tl.load(dt + tokens * stride_dt_token, mask=valid, other=0.0).to(tl.float32)
        if HAS_BIAS:
            step += tl.load(dt_bias + head).to(tl.float32)
        if SOFTPLUS:
            step = tl.where(step <= 20.0, tl.log(1.0 + tl.exp(step)), step)
        step = tl.minimum(tl.maximum(step, dt_min), dt_max)
        step = tl.where(valid, step, 0.0)
        log_decay = step * a
        total = tl.sum(log_decay, axis=0)
        # Summed from the end: the difference to the total would lose the small decays of the last
        # tokens, which weigh most, in the rounding of large sums.
        later = tl.cumsum(log_decay, axis=0, reverse=True) - log_decay
        weights = tl.exp(later) * step
        inputs = tl.load(
            x + tokens[None, :] * stride_x_token + dims[:, None] * stride_x_dim,
            mask=valid[None, :] & (dims[:, None] < head_dim),
            other=0.0,
        ).to(tl.float32)
        b = tl.load(
            B + tokens[:, None] * stride_B_token + cols[None, :] * stride_B_state,
            mask=valid[:, None] & (cols[None, :] < d_state),
            other=0.0,
        ).to(tl.float32)
        # Without "ieee" the product would be rounded to TF32, as coarse as the activations.
        added = tl.dot(inputs * weights[None, :], b, input_precision="ieee")
        state = state * tl.exp(total) + added
    out += (checkpoint * tl.num_programs(1) + head) * head_dim * d_state
    tl.store(out + dims[:, None] * d_state + cols[None, :], state, mask=in_state)


def advance_mamba2_triton(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:
    """As `advance_mamba2`, for tensors of any strides on one device."""
    n = h_index.shape[0]
    _, _, heads, head_dim = x.shape
    groups, d_state = B.shape[2:]
    out = torch.empty(n, heads, head_dim, d_state, dtype=torch.float32, device=h.device)
    if n == 0:
        return out
    # tl.dot takes no side below 16.
    block_dim = min(64, max(16, triton.next_power_of_2(head_dim)))
    block_state = min(64, max(16, triton.next_power_of_2(d_state)))
    blocks = triton.cdiv(head_dim, block_dim) * triton.cdiv(d_state, block_state)
    _advance_mamba2_kernel[(blocks, heads, n)](
        out,
        h,
        h_index.contiguous(),
        starts.contiguous(),
        lengths.contiguous(),
        x,
        dt,
        A,
        B,
        None if dt_bias is None else dt_bias.contiguous(),
        float(dt_limit[0]),
        float(dt_limit[1]),
        heads // groups,
        head_dim,
        d_state,
        *h.stride(),
        *x.stride()[1:],
        *dt.stride()[1:],
        A.stride(0),
        *B.stride()[1:],
        HAS_BIAS=dt_bias is not None,
        SOFTPLUS=dt_softplus,
        BLOCK_TOKENS=32,
        BLOCK_DIM=block_dim,
        BLOCK_STATE=block_state,
        num_warps=4,
    )
    return out

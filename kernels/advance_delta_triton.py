"""Triton kernel of `advance_gdn` and `advance_kda`.

A program owns a few rows of one head's state and walks over the tokens. Rows of a delta-rule
state do not depend on each other, so programs never meet; the state stays in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .delta_rule import L2NORM_EPS


@triton.jit
def _advance_delta_rule_kernel(
    out,
    h,
    h_index,
    starts,
    lengths,
    k,
    v,
    gate,
    beta,
    A_log,
    dt_bias,
    lower_bound,
    eps,
    value_heads_per_key_head,
    value_dim,
    key_dim,
    stride_h_row,
    stride_h_head,
    stride_h_value,
    stride_h_key,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_gate_token,
    stride_gate_head,
    stride_gate_dim,
    stride_beta_token,
    stride_beta_head,
    L2NORM: tl.constexpr,
    RAW_GATE: tl.constexpr,  # per key channel and not yet activated, else a log decay per head
    BOUNDED_GATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RAW_BETA: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    checkpoint = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    cols = tl.arange(0, BLOCK_KEY)
    in_rows = rows < value_dim
    in_cols = cols < key_dim
    in_state = in_rows[:, None] & in_cols[None, :]

    boundary = tl.load(h_index + checkpoint).to(tl.int64)
    start = tl.load(starts + checkpoint).to(tl.int64)
    length = tl.load(lengths + checkpoint).to(tl.int32)
    h += boundary * stride_h_row + head * stride_h_head
    k += start * stride_k_token + (head // value_heads_per_key_head) * stride_k_head
    v += start * stride_v_token + head * stride_v_head
    gate += start * stride_gate_token + head * stride_gate_head
    beta += start * stride_beta_token + head * stride_beta_head

    state = tl.load(
        h + rows[:, None] * stride_h_value + cols[None, :] * stride_h_key, mask=in_state, other=0.0
    ).to(tl.float32)
    if RAW_GATE:
        rate = tl.exp(tl.load(A_log + head).to(tl.float32))
        bias = tl.zeros([BLOCK_KEY], dtype=tl.float32)
        if HAS_BIAS:
            bias += tl.load(dt_bias + head * key_dim + cols, mask=in_cols, other=0.0)
    # Pipelined: the next tokens' inputs are on their way while this one is consumed.
    for _ in tl.range(0, length, num_stages=3):
        key = tl.load(k + cols * stride_k_dim, mask=in_cols, other=0.0).to(tl.float32)
        value = tl.load(v + rows * stride_v_dim, mask=in_rows, other=0.0).to(tl.float32)
        gain = tl.load(beta).to(tl.float32)
        if RAW_BETA:
            gain = tl.sigmoid(gain)
        if L2NORM:
            key = key / tl.sqrt(tl.sum(key * key, axis=0) + eps)
        if RAW_GATE:
            raw = tl.load(gate + cols * stride_gate_dim, mask=in_cols, other=0.0).to(tl.float32)
            raw += bias
            if BOUNDED_GATE:
                log_decay = lower_bound * tl.sigmoid(rate * raw)
            else:
                log_decay = -rate * tl.where(raw < 20.0, tl.log(1.0 + tl.exp(raw)), raw)
            state *= tl.exp(log_decay)[None, :]
        else:
            state *= tl.exp(tl.load(gate).to(tl.float32))
        predicted = tl.sum(state * key[None, :], axis=1)
        state += (gain * (value - predicted))[:, None] * key[None, :]
        k += stride_k_token
        v += stride_v_token
        gate += stride_gate_token
        beta += stride_beta_token
    out += (checkpoint * tl.num_programs(1) + head) * value_dim * key_dim
    tl.store(out + rows[:, None] * key_dim + cols[None, :], state, mask=in_state)


def _launch(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    l2norm: bool,
    raw_beta: bool,
) -> Tensor:
    """`gate` is (1, tokens, value_heads, key_dim) with `A_log`, else its last axis is 1."""
    n = h_index.shape[0]
    key_heads, key_dim = k.shape[2:]
    value_heads, value_dim = v.shape[2:]
    out = torch.empty(n, value_heads, value_dim, key_dim, dtype=torch.float32, device=h.device)
    if n == 0:
        return out
    # One warp per program: sums over a key's channels then need no shared memory, and the loop
    # over tokens is bound by their latency.
    block_value = min(8, triton.next_power_of_2(value_dim))
    _advance_delta_rule_kernel[(triton.cdiv(value_dim, block_value), value_heads, n)](
        out,
        h,
        h_index.contiguous(),
        starts.contiguous(),
        lengths.contiguous(),
        k,
        v,
        gate,
        beta,
        None if A_log is None else A_log.reshape(-1),
        None if dt_bias is None else dt_bias.reshape(-1),
        0.0 if lower_bound is None else float(lower_bound),
        L2NORM_EPS,
        value_heads // key_heads,
        value_dim,
        key_dim,
        *h.stride(),
        *k.stride()[1:],
        *v.stride()[1:],
        *gate.stride()[1:],
        *beta.stride()[1:],
        L2NORM=l2norm,
        RAW_GATE=A_log is not None,
        BOUNDED_GATE=lower_bound is not None,
        HAS_BIAS=dt_bias is not None,
        RAW_BETA=raw_beta,
        BLOCK_VALUE=block_value,
        BLOCK_KEY=triton.next_power_of_2(key_dim),
        num_warps=1,
    )
    return out


def advance_gdn_triton(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> Tensor:
    """As `advance_gdn`, for tensors of any strides on one device."""
    gate = g[..., None]
    return _launch(
        *(h, h_index, starts, lengths, k, v, gate, beta, None, None, None),
        l2norm=use_qk_l2norm_in_kernel,
        raw_beta=False,
    )


def advance_kda_triton(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    beta_is_raw: bool = False,
) -> Tensor:
    """As `advance_kda`, for tensors of any strides on one device."""
    return _launch(
        *(h, h_index, starts, lengths, k, v, a, beta, A_log, dt_bias, lower_bound),
        l2norm=use_qk_l2norm_in_kernel,
        raw_beta=beta_is_raw,
    )

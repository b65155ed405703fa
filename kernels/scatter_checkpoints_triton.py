"""Triton kernel of `scatter_checkpoints`."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _scatter_checkpoints_kernel(
    conv_pool,
    ssm_pool,
    x,
    query_start_loc,
    rows,
    ends,
    slots,
    states,
    windows,
    window_index,
    dim,
    state_size,
    state_blocks,
    stride_conv_slot,
    stride_conv_dim,
    stride_conv_time,
    stride_ssm_slot,
    stride_x_token,
    stride_x_dim,
    stride_states_row,
    stride_windows_row,
    stride_windows_dim,
    stride_windows_time,
    HAS_WINDOWS: tl.constexpr,
    HISTORY: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    block = tl.program_id(0)
    checkpoint = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + checkpoint).to(tl.int64)
    if slot < 0:
        return
    if block < state_blocks:
        offsets = block * BLOCK_STATE + tl.arange(0, BLOCK_STATE)
        in_state = offsets < state_size
        source = states + checkpoint * stride_states_row
        state = tl.load(source + offsets, mask=in_state).to(ssm_pool.dtype.element_ty)
        tl.store(ssm_pool + slot * stride_ssm_slot + offsets, state, mask=in_state)
    else:
        dims = (block - state_blocks) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
        dims = dims.to(tl.int64)
        in_dim = dims < dim
        row = tl.load(rows + checkpoint).to(tl.int64)
        first = tl.load(query_start_loc + row).to(tl.int64)
        start = tl.load(ends + checkpoint).to(tl.int64) - HISTORY
        target = conv_pool + slot * stride_conv_slot + dims * stride_conv_dim
        for j in tl.static_range(HISTORY):
            token = start + j
            element = tl.load(
                x + token * stride_x_token + dims * stride_x_dim,
                mask=in_dim & (token >= first),
                other=0.0,
            ).to(tl.float32)
            if HAS_WINDOWS:
                window = tl.load(window_index + checkpoint).to(tl.int64)
                # At most one of the two loads is not masked.
                element += tl.load(
                    windows
                    + window * stride_windows_row
                    + dims * stride_windows_dim
                    + (HISTORY + token - first) * stride_windows_time,
                    mask=in_dim & (token < first) & (window >= 0),
                    other=0.0,
                ).to(tl.float32)
            element = element.to(conv_pool.dtype.element_ty)
            tl.store(target + j * stride_conv_time, element, mask=in_dim)


def scatter_checkpoints_triton(
    conv_pool: Tensor,
    ssm_pool: Tensor,
    x: Tensor,
    query_start_loc: Tensor,
    rows: Tensor,
    ends: Tensor,
    slots: Tensor,
    states: Tensor,
    windows: Tensor | None = None,
    window_index: Tensor | None = None,
) -> None:
    """As `scatter_checkpoints`, for tensors on one device.

    Raises:
        ValueError: if a slot of `ssm_pool` or a row of `states` is not contiguous.
    """
    n = slots.shape[0]
    if n == 0:
        return
    for name, tensor in (("ssm_pool", ssm_pool), ("states", states)):
        if not tensor[0].is_contiguous():
            raise ValueError(f"{name} must be contiguous behind its first axis")
    has_windows = windows is not None and window_index is not None
    dim, history = conv_pool.shape[1:]
    state_size = ssm_pool[0].numel()
    block_state, block_dim = 2048, 512
    state_blocks = triton.cdiv(state_size, block_state)
    _scatter_checkpoints_kernel[(state_blocks + triton.cdiv(dim, block_dim), n)](
        conv_pool,
        ssm_pool,
        x,
        *(t.contiguous() for t in (query_start_loc, rows, ends, slots)),
        states,
        windows if has_windows else None,
        window_index.contiguous() if has_windows else None,
        dim,
        state_size,
        state_blocks,
        *conv_pool.stride(),
        ssm_pool.stride(0),
        *x.stride(),
        states.stride(0),
        *(windows.stride() if has_windows else (0, 0, 0)),
        HAS_WINDOWS=has_windows,
        HISTORY=history,
        BLOCK_STATE=block_state,
        BLOCK_DIM=block_dim,
        num_warps=4,
    )

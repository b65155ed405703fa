"""Writes of one layer's checkpoints into their slots of the state pool."""

import torch
from torch import Tensor


def scatter_checkpoints(
    conv_pool: Tensor,
    ssm_pool: Tensor,
    x: Tensor,
    query_start_loc: Tensor,
    working_slots: Tensor,
    rows: Tensor,
    ends: Tensor,
    slots: Tensor,
    state_index: Tensor,
    states: Tensor | None,
    windows: Tensor | None = None,
    window_index: Tensor | None = None,
) -> None:
    """Write SSM state and convolution window of n checkpoints, on a GPU in one launch.

    The window holds the last inputs of the convolution before the checkpoint. Those that lie
    before the row's first token come from `windows`; where there is none they are zero.

    Args:
        conv_pool: (slots, dim, width - 1), any strides; written in place.
        ssm_pool: (slots, *state_shape), float32 or bfloat16, contiguous within a slot; written
            in place.
        x: (tokens, dim), inputs of the convolution, any strides.
        query_start_loc: (rows + 1,) first flattened token of every sequence.
        working_slots: (rows,) slot that holds each row's running state after the layer; read only
            for checkpoints whose `state_index` is -1.
        rows: (n,) sequence of each checkpoint.
        ends: (n,) flattened position; the checkpoint is the state after all tokens of its row
            before it.
        slots: (n,) destinations, distinct from each other and from working slots; a negative
            one skips its checkpoint.
        state_index: (n,) row of `states`, or -1 to copy the row's working slot (the checkpoint
            lies at the end of its row).
        states: (m, *state_shape), contiguous within a row; None if every index is -1.
        windows: (e, dim, width - 1), convolution windows of some rows as they were before the
            layer.
        window_index: (n,) row of `windows` for a checkpoint fewer than width - 1 tokens behind
            its row's start, else -1.
    """
    args = (conv_pool, ssm_pool, x, query_start_loc, working_slots, rows, ends, slots)
    sources = (state_index, states, windows, window_index)
    if x.is_cuda:
        from .scatter_checkpoints_triton import scatter_checkpoints_triton

        scatter_checkpoints_triton(*args, *sources)
    else:
        scatter_checkpoints_torch(*args, *sources)


def scatter_checkpoints_torch(
    conv_pool: Tensor,
    ssm_pool: Tensor,
    x: Tensor,
    query_start_loc: Tensor,
    working_slots: Tensor,
    rows: Tensor,
    ends: Tensor,
    slots: Tensor,
    state_index: Tensor,
    states: Tensor | None,
    windows: Tensor | None = None,
    window_index: Tensor | None = None,
) -> None:
    """`scatter_checkpoints` by gathers and indexed writes."""
    wanted = slots >= 0
    rows, ends, slots, state_index = (t[wanted] for t in (rows, ends, slots, state_index))
    if len(slots) == 0:
        return
    given = state_index >= 0
    ssm_pool[slots[~given]] = ssm_pool[working_slots[rows[~given]].long()]
    if states is not None:
        ssm_pool[slots[given]] = states[state_index[given]].to(ssm_pool.dtype)

    history = conv_pool.shape[2]
    tokens = ends[:, None] - history + torch.arange(history, device=ends.device)
    before_row = tokens - query_start_loc[rows].long()[:, None]  # negative: before its first token
    window = x[tokens.clamp(min=0)]  # (n, history, dim)
    earlier = torch.zeros_like(window)
    if windows is not None and window_index is not None:
        index = window_index[wanted]
        kept = windows.transpose(1, 2)[
            index.clamp(min=0)[:, None], (before_row + history).clamp(max=history - 1)
        ]
        earlier = kept.masked_fill((index < 0)[:, None, None], 0)
    window = torch.where(before_row[..., None] >= 0, window, earlier)
    conv_pool[slots] = window.transpose(1, 2).to(conv_pool.dtype)

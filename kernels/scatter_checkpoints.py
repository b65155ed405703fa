"""Writes of one layer's checkpoints into their slots of the state pool."""

import torch
from torch import Tensor


def scatter_checkpoints(
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
    """Write SSM state and convolution window of n checkpoints, on a GPU in one launch.

    The window holds the last inputs of the convolution before the checkpoint. Those that lie
    before the row's first token come from `windows`; where there is none they are zero.

    Args:
        conv_pool: (slots, dim, width - 1), any strides; written in place.
        ssm_pool: (slots, *state_shape), float32 or bfloat16, contiguous within a slot; written
            in place.
        x: (tokens, dim), inputs of the convolution, any strides.
        query_start_loc: (rows + 1,) first flattened token of every sequence.
        rows: (n,) sequence of each checkpoint.
        ends: (n,) flattened position; the checkpoint is the state after all tokens of its row
            before it.
        slots: (n,) destinations, distinct from each other; a negative one skips its checkpoint.
        states: (n, *state_shape), contiguous within a row.
        windows: (e, dim, width - 1), convolution windows of some rows as they were before the
            layer.
        window_index: (n,) row of `windows` for a checkpoint fewer than width - 1 tokens behind
            its row's start, else -1.
    """
    args = (conv_pool, ssm_pool, x, query_start_loc, rows, ends, slots)
    sources = (states, windows, window_index)
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
    rows: Tensor,
    ends: Tensor,
    slots: Tensor,
    states: Tensor,
    windows: Tensor | None = None,
    window_index: Tensor | None = None,
) -> None:
    """`scatter_checkpoints` by gathers and indexed writes."""
    wanted = slots >= 0
    rows, ends, slots = (t[wanted] for t in (rows, ends, slots))
    if len(slots) == 0:
        return
    ssm_pool[slots] = states[wanted].to(ssm_pool.dtype)

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

"""States of Mamba-2 layers between chunk boundaries: the recurrence over a chunk's first tokens.

SGLang's ``mamba_chunk_scan_combined`` returns states at any position by itself
(``track_seq_idx``, ``track_end_locs``), and a server on a GPU uses that. The function here serves
kernels that return chunk states only, among them our scan in torch, and cross-checks SGLang's.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

# As in the scan: a state must not depend on where its sequence was cut.
_COMPUTE = torch.float64


def advance_mamba2(
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
    """Advance chunk-boundary states by up to a chunk of tokens each.

    Per head and token: ``h <- exp(dt A) h + dt x B^T``.

    Args:
        h: (m, heads, head_dim, d_state), boundary states of any float type.
        h_index: (n,) row of `h` from which each checkpoint starts.
        starts: (n,) flattened index of the first token to consume.
        lengths: (n,) number of tokens to consume; 0 gives the boundary state itself.
        x: (1, tokens, heads, head_dim).
        dt: (1, tokens, heads); `dt_bias` and softplus are applied here, then `dt_limit`.
        A: (heads,), negative.
        B: (1, tokens, groups, d_state); heads are a multiple of groups.
        dt_bias: (heads,) or None.

    Returns:
        (n, heads, head_dim, d_state), float32.
    """
    args = (h, h_index, starts, lengths, x, dt, A, B, dt_bias, dt_softplus, dt_limit)
    if x.is_cuda:
        from .advance_mamba2_triton import advance_mamba2_triton

        return advance_mamba2_triton(*args)
    return advance_mamba2_torch(*args)


def advance_mamba2_torch(
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
    """`advance_mamba2` in closed form: one product per checkpoint and group, in float64."""
    n = h_index.shape[0]
    _, tokens, heads, head_dim = x.shape
    groups, d_state = B.shape[2:]
    if n == 0:
        return torch.empty(0, *h.shape[1:], dtype=torch.float32, device=h.device)
    width = max(1, int(lengths.max()))
    offsets = torch.arange(width, device=x.device)
    unused = offsets >= lengths[:, None]
    index = (starts[:, None] + offsets).clamp_(max=tokens - 1)

    step = dt[0, index].to(_COMPUTE)
    if dt_bias is not None:
        step = step + dt_bias.to(_COMPUTE)
    if dt_softplus:
        step = softplus(step)
    step = step.clamp(*dt_limit).masked_fill(unused[..., None], 0)
    log_decay = (step * A.to(_COMPUTE)).cumsum(1)
    total = log_decay[:, -1]
    weights = torch.exp(total[:, None] - log_decay) * step

    # Other sequences' tokens behind the checkpoint may hold anything, also NaN.
    hidden = unused[..., None, None]
    inputs = x[0, index].to(_COMPUTE).masked_fill(hidden, 0) * weights[..., None]
    b = B[0, index].to(_COMPUTE).masked_fill(hidden, 0)
    per_group = inputs.view(n, width, groups, -1).permute(0, 2, 3, 1)
    added = (per_group @ b.permute(0, 2, 1, 3)).view(n, heads, head_dim, d_state)
    state = h[h_index].to(_COMPUTE) * torch.exp(total)[..., None, None]
    return (state + added).float()

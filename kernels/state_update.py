"""One step of the Mamba state-space recurrence (decode), in plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

PAD_SLOT_ID = -1

# As in the scan: a decoded and a prefilled token should round to the same value.
_COMPUTE = torch.float64


def _heads(t: Tensor, dims: int, axis: int) -> Tensor:
    """Insert the axes that a caller without heads (or without tokens) leaves out."""
    while t.dim() < dims:
        t = t.unsqueeze(axis)
    return t


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = PAD_SLOT_ID,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    **_unused,
) -> None:
    """Advance each row's state by its token(s) and write the outputs into `out`.

    Per head, with ``dt' = softplus(dt + dt_bias)``::

        h <- exp(dt' A) h + dt' x B^T
        y  = C h + D x,   times silu(z) if z is given

    Args:
        state: (slots, heads, head_dim, d_state) or (slots, dim, d_state); changed in place.
        x, dt, z, out: (batch, [tokens,] heads, head_dim) or (batch, dim).
        A: (heads, head_dim, d_state) or (dim, d_state).
        B, C: (batch, [tokens,] groups, d_state) or (batch, d_state).
        D, dt_bias: (heads, head_dim) or (dim,).
        state_batch_indices: (batch,) slot of each row; `pad_slot_id` marks a padded row, whose
            output is zero. Without it row i uses slot i.

    Raises:
        NotImplementedError: for the arguments of speculative decoding.
    """
    if intermediate_states_buffer is not None or retrieve_parent_token is not None:
        raise NotImplementedError("speculative decoding is not supported on CPU")
    state = _heads(state, 4, 1)
    x, dt, B, C, out = (_heads(_heads(t, 3, 1), 4, 1) for t in (x, dt, B, C, out))
    z = None if z is None else _heads(_heads(z, 3, 1), 4, 1)
    A = _heads(A, 3, 0).to(_COMPUTE)
    D = None if D is None else _heads(D, 2, 0).to(_COMPUTE)
    dt_bias = None if dt_bias is None else _heads(dt_bias, 2, 0).to(_COMPUTE)
    batch, tokens, heads, _ = x.shape
    per_group = heads // B.shape[2]

    slots = torch.arange(batch) if state_batch_indices is None else state_batch_indices.long()
    real = slots != pad_slot_id
    all_real = bool(real.all())
    h = state[slots if all_real else slots.clamp(min=0)].to(_COMPUTE)
    for t in range(tokens):
        step = dt[:, t].to(_COMPUTE)
        if dt_bias is not None:
            step = step + dt_bias
        if dt_softplus:
            step = softplus(step)
        x_t = x[:, t].to(_COMPUTE)
        b_t = B[:, t].to(_COMPUTE).repeat_interleave(per_group, dim=1)
        c_t = C[:, t].to(_COMPUTE).repeat_interleave(per_group, dim=1)
        h = h * torch.exp(step[..., None] * A)
        h.addcmul_((step * x_t)[..., None], b_t[:, :, None])
        y = torch.matmul(h, c_t[..., None]).squeeze(-1)
        if D is not None:
            y = y + D * x_t
        if z is not None:
            y = y * silu(z[:, t].to(_COMPUTE))
        out[:, t] = y if all_real else torch.where(real[:, None, None], y, 0.0)
    if not disable_state_update:
        state[slots[real]] = h[real].to(state.dtype)

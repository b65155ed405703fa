"""The gated delta rule from token to token, in plain torch; shared by GDN and KDA."""

from collections.abc import Callable

import torch
from torch import Tensor

L2NORM_EPS = 1e-6  # as in SGLang's l2norm of queries and keys

# As in the scan: a state must not depend on where its sequence was cut.
COMPUTE = torch.float64


def advance_delta_rule_torch(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Callable[[Tensor], Tensor],
    beta: Callable[[Tensor], Tensor],
    l2norm: bool,
) -> Tensor:
    """One loop over the tokens of a chunk, vectorised over checkpoints and heads.

    Per value head and token: ``S <- S exp(g)``, ``u = beta (v - S k)``, ``S <- S + u k^T``.

    Args:
        h: (m, value_heads, value_dim, key_dim).
        h_index, starts, lengths: (n,), as in `advance_gdn`.
        k: (1, tokens, key_heads, key_dim).
        v: (1, tokens, value_heads, value_dim).
        log_decay: from (rows,) token indices to (rows, value_heads, 1 or key_dim), float64.
        beta: from (rows,) token indices to (rows, value_heads), float64.
        l2norm: keys are divided by their length.

    Returns:
        (n, value_heads, value_dim, key_dim), float32.
    """
    if h_index.shape[0] == 0:
        return torch.empty(0, *h.shape[1:], dtype=torch.float32, device=h.device)
    # Longest first, so that those that still run are always the first rows.
    order = torch.argsort(lengths, descending=True)
    starts, lengths = starts[order], lengths[order]
    state = h[h_index[order]].to(COMPUTE)
    per_key_head = v.shape[2] // k.shape[2]
    for t in range(int(lengths[0])):
        running = int((lengths > t).sum())
        tokens = starts[:running] + t
        key = k[0, tokens].to(COMPUTE)
        if l2norm:
            key = key / torch.sqrt(key.square().sum(-1, keepdim=True) + L2NORM_EPS)
        key = key.repeat_interleave(per_key_head, dim=1)
        s = state[:running]
        s *= torch.exp(log_decay(tokens))[:, :, None, :]
        predicted = (s @ key[..., None]).squeeze(-1)
        update = beta(tokens)[..., None] * (v[0, tokens].to(COMPUTE) - predicted)
        s.addcmul_(update[..., None], key[:, :, None, :])
    out = torch.empty_like(state, dtype=torch.float32)
    out[order] = state.float()
    return out

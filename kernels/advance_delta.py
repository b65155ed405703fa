"""The gated delta rule up to a token inside a chunk, in plain torch; shared by GDN and KDA."""

from collections.abc import Callable

from torch import Tensor

from .delta_rule import COMPUTE, state_after, unit


def advance_delta_rule_torch(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Callable[[slice], Tensor],
    beta: Callable[[slice], Tensor],
    l2norm: bool,
) -> Tensor:
    """One chunk after another in closed form, as the scan computes it (`delta_rule`).

    Per value head and token: ``S <- S exp(g)``, ``u = beta (v - S k)``, ``S <- S + u k^T``.

    Args:
        h: (m, value_heads, value_dim, key_dim).
        h_index, starts, lengths: (n,), as in `advance_gdn`.
        k: (1, tokens, key_heads, key_dim).
        v: (1, tokens, value_heads, value_dim).
        log_decay: from a slice of tokens to theirs, (len, value_heads, 1 or key_dim), float64.
        beta: from a slice of tokens to theirs, (len, value_heads), float64.
        l2norm: keys are divided by their length.

    Returns:
        (n, value_heads, value_dim, key_dim), float32.
    """
    out = h[h_index].to(COMPUTE)
    per_key_head = v.shape[2] // k.shape[2]
    spans = zip(starts.tolist(), lengths.tolist(), strict=True)
    for checkpoint, (start, length) in enumerate(spans):
        if length == 0:
            continue
        tokens = slice(start, start + length)
        key = unit(k[0, tokens]) if l2norm else k[0, tokens].to(COMPUTE)
        out[checkpoint] = state_after(
            key.repeat_interleave(per_key_head, dim=1).transpose(0, 1),
            v[0, tokens].to(COMPUTE).transpose(0, 1),
            log_decay(tokens).transpose(0, 1),
            beta(tokens).t()[..., None],
            out[checkpoint],
        )
    return out.float()

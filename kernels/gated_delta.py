"""The operators of gated delta-net layers (Qwen3-Next), in plain torch.

Signatures are those by which SGLang's backend calls the accelerator kernels, so the functions here
can be bound in their place.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from . import delta_rule


def fused_gdn_gating(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """Decay and step size of each token.

    Args:
        A_log, dt_bias: (heads,).
        a, b: (tokens, heads).
        beta, threshold: of softplus.

    Returns:
        ``-exp(A_log) softplus(a + dt_bias)``, the logarithm of the decay, and ``sigmoid(b)``
        rounded to b's dtype; both (1, tokens, heads) in float32.
    """
    step = softplus(a.double() + dt_bias.double(), beta, threshold)
    log_decay = -A_log.double().exp() * step
    return log_decay[None].float(), b.double().sigmoid().to(b.dtype)[None].float()


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
) -> tuple[Tensor, None, Tensor]:
    """Run a batch of sequences that lie one after another (prefill); see `delta_rule`.

    Args:
        q, k: (1, tokens, key_heads, key_dim).
        v: (1, tokens, heads, value_dim).
        g: (1, tokens, heads), logarithm of the decay.
        beta: (1, tokens, heads), step size.
        scale: of the queries; by default ``key_dim ** -0.5``.
        initial_state: (slots, heads, value_dim, key_dim); each sequence's row is read and, if
            `inplace_update`, overwritten with its last state.
        initial_state_indices: (sequences,) row of each; a negative one stands for a state of zero
            that is not kept.
        cu_seqlens: (sequences + 1,).
        use_qk_l2norm_in_kernel: scale queries and keys to length one.

    Returns:
        The outputs (1, tokens, heads, value_dim) of q's dtype, None, and the state before each
        chunk of 64 tokens of each sequence (1, chunks, heads, value_dim, key_dim) of k's dtype.

    Raises:
        ValueError: if the batch axis is not 1, or heads come first.
    """
    if q.shape[0] != 1 or head_first:
        raise ValueError("only a flattened batch of size 1, heads after tokens, is supported")
    if use_qk_l2norm_in_kernel:
        unit_q, unit_k = delta_rule.unit(q), delta_rule.unit(k)
    else:
        unit_q, unit_k = q, k
    y, before = delta_rule.scan_pool(
        *(unit_q[0], unit_k[0], v[0], g[0, ..., None], beta[0]),
        k.shape[-1] ** -0.5 if scale is None else scale,
        [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist(),
        initial_state,
        initial_state_indices,
        keep=inplace_update,
    )
    return y[None].to(q.dtype), None, before[None].to(k.dtype)


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor]:
    """Advance each row by one token (decode).

    Args:
        mixed_qkv: (batch, channels), all queries, then all keys, then all values.
        a, b: (batch, heads), as of `fused_gdn_gating`.
        A_log, dt_bias: (heads,).
        initial_state: (slots, heads, value_dim, key_dim), changed in place.
        out: (batch, 1, heads, value_dim), written in place.
        ssm_state_indices: (batch,) slot of each row; a negative one marks a padded row, whose
            output is zero.

    Returns:
        `out` and `initial_state`.
    """
    q, k, v = split_qkv(mixed_qkv, initial_state)
    if use_qk_l2norm_in_kernel:
        q, k = delta_rule.unit(q), delta_rule.unit(k)
    log_decay, beta = fused_gdn_gating(A_log, a, b, dt_bias)
    delta_rule.step(
        *(q, k, v, log_decay[0, ..., None], beta[0], scale),
        pool=initial_state,
        slots=ssm_state_indices,
        out=out[:, 0],
    )
    return out, initial_state


def split_qkv(mixed_qkv: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys (batch, key_heads, key_dim) and values (batch, heads, value_dim).

    Args:
        mixed_qkv: (batch, channels).
        state: (slots, heads, value_dim, key_dim).
    """
    _, heads, value_dim, key_dim = state.shape
    values = heads * value_dim
    keys = (mixed_qkv.shape[1] - values) // 2
    q, k, v = mixed_qkv.split([keys, keys, values], dim=-1)
    return q.unflatten(1, (-1, key_dim)), k.unflatten(1, (-1, key_dim)), v.unflatten(1, (heads, -1))


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: Tensor,
    mixed_ba: Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort out the projections of Qwen3-Next, whose checkpoints interleave them per key head.

    Args:
        mixed_qkvz: (tokens, channels), for each key head its query, its key, and the values and
            gates of its value heads.
        mixed_ba: (tokens, 2 * num_heads_v), for each key head the b and then the a of its value
            heads.
        head_qk, head_v: dimension of a key head and of a value head.

    Returns:
        All queries, keys and values (tokens, channels), the gates z (tokens, num_heads_v, head_v),
        b and a (tokens, num_heads_v).
    """
    per_key = num_heads_v // num_heads_qk
    values = per_key * head_v
    by_head = mixed_qkvz.unflatten(1, (num_heads_qk, -1))
    q, k, v, z = by_head.split([head_qk, head_qk, values, values], dim=-1)
    b, a = mixed_ba.unflatten(1, (num_heads_qk, -1)).split(per_key, dim=-1)
    mixed_qkv = torch.cat([t.flatten(1) for t in (q, k, v)], dim=-1)
    z = z.reshape(-1, num_heads_v, head_v)
    return mixed_qkv, z, b.flatten(1), a.flatten(1)

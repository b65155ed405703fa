"""The operators of Kimi delta attention (Kimi-Linear), in plain torch.

As gated delta-net, but each channel of the key decays by itself. Signatures are those by which
SGLang's backend calls the accelerator kernels.
"""

from torch import Tensor
from torch.nn.functional import softplus

from . import delta_rule
from .gated_delta import split_qkv


def log_decay(
    a: Tensor, A_log: Tensor, dt_bias: Tensor | None, lower_bound: float | None
) -> Tensor:
    """Logarithm of the decay of each channel.

    ``-exp(A_log) softplus(a + dt_bias)`` or, with a lower bound,
    ``lower_bound sigmoid(exp(A_log) (a + dt_bias))``.

    Args:
        a: (tokens, heads, key_dim).
        A_log: heads elements.
        dt_bias: heads * key_dim elements, or None.

    Returns:
        (tokens, heads, key_dim), float64.
    """
    step = a.double()
    if dt_bias is not None:
        step = step + dt_bias.double().reshape(a.shape[1:])
    rate = A_log.double().exp().reshape(-1, 1)
    if lower_bound is not None:
        return lower_bound * (rate * step).sigmoid()
    return -rate * softplus(step, threshold=20.0)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_intermediate_states: bool = False,
    track_state: Tensor | None = None,
    track_chunk_idx: Tensor | None = None,
    beta_is_raw: bool = False,
    **_unused,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a batch of sequences that lie one after another (prefill); see `delta_rule`.

    Args:
        q, k: (1, tokens, heads, key_dim).
        v: (1, tokens, heads, value_dim).
        g: (1, tokens, heads, key_dim), logarithm of the decay; with `A_log`, what `log_decay`
            makes it from.
        beta: (1, tokens, heads), step size; if `beta_is_raw`, before its sigmoid.
        scale: of the queries; by default ``key_dim ** -0.5``.
        initial_state: (slots, heads, value_dim, key_dim); each sequence's row is read and
            overwritten with its last state.
        initial_state_indices: (sequences,) row of each; a negative one stands for a state of zero
            that is not kept.
        cu_seqlens: (sequences + 1,).
        use_qk_l2norm_in_kernel: scale queries and keys to length one.
        track_state: (sequences, heads, value_dim, key_dim) float32, written in place: the state
            before each sequence's chunk `track_chunk_idx`. Rows without such a chunk stay.

    Returns:
        The outputs (1, tokens, heads, value_dim) of q's dtype; if `output_intermediate_states` also
        the state before each chunk of 64 tokens of each sequence (1, chunks, heads, value_dim,
        key_dim) of k's dtype.
    """
    if use_qk_l2norm_in_kernel:
        unit_q, unit_k = delta_rule.unit(q), delta_rule.unit(k)
    else:
        unit_q, unit_k = q, k
    bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    y, before = delta_rule.scan_pool(
        *(unit_q[0], unit_k[0], v[0]),
        g[0] if A_log is None else log_decay(g[0], A_log, dt_bias, lower_bound),
        beta[0].double().sigmoid() if beta_is_raw else beta[0],
        k.shape[-1] ** -0.5 if scale is None else scale,
        bounds,
        initial_state,
        initial_state_indices,
    )
    if track_state is not None:
        first = 0
        for row, chunk in enumerate(track_chunk_idx.tolist()):
            chunks = -(-(bounds[row + 1] - bounds[row]) // delta_rule.CHUNK)
            if 0 <= chunk < chunks:
                track_state[row] = before[first + chunk]
            first += chunks
    out = y[None].to(q.dtype)
    return (out, before[None].to(k.dtype)) if output_intermediate_states else out


def fused_recurrent_kda_packed_decode(
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
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance each row by one token (decode).

    Args:
        mixed_qkv: (batch, channels), all queries, then all keys, then all values.
        a: (batch, heads * key_dim), as of `log_decay`.
        b: (batch, heads), the step size before its sigmoid.
        A_log: (heads,).
        dt_bias: (heads * key_dim,).
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
    heads, _, key_dim = initial_state.shape[1:]
    delta_rule.step(
        *(q, k, v),
        log_decay(a.reshape(-1, heads, key_dim), A_log, dt_bias, lower_bound),
        b.double().sigmoid(),
        scale,
        pool=initial_state,
        slots=ssm_state_indices,
        out=out[:, 0],
    )
    return out, initial_state

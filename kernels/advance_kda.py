"""States of Kimi delta attention layers (Kimi-Linear) between chunk boundaries."""

import torch
from torch import Tensor

from .advance_delta import advance_delta_rule_torch
from .delta_rule import COMPUTE
from .kda import log_decay


def advance_kda(
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
    """Advance chunk-boundary states by up to a chunk of tokens each.

    The rule is that of `advance_gdn` with a decay per key channel (Kimi Team, 2025,
    arXiv 2510.26692): ``g = -exp(A_log) softplus(a + dt_bias)``, or, with `lower_bound`,
    ``g = lower_bound sigmoid(exp(A_log) (a + dt_bias))``. Inputs are those of SGLang's
    ``chunk_kda``. That function may write its output over `v` where `v` is contiguous: call this
    one with a `v` that is still intact.

    Args:
        h: (m, heads, value_dim, key_dim), boundary states of any float type.
        h_index: (n,) row of `h` from which each checkpoint starts.
        starts: (n,) flattened index of the first token to consume.
        lengths: (n,) number of tokens to consume; 0 gives the boundary state itself.
        k: (1, tokens, heads, key_dim).
        v: (1, tokens, heads, value_dim).
        a: (1, tokens, heads, key_dim), the gate before its activation.
        beta: (1, tokens, heads), between 0 and 1, or any number if `beta_is_raw`.
        A_log: heads elements, any shape.
        dt_bias: heads * key_dim elements, any shape, or None.
        lower_bound: negative; the smallest log decay, or None for the softplus gate.
        use_qk_l2norm_in_kernel: keys are divided by their length first.
        beta_is_raw: a sigmoid is applied to `beta`.

    Returns:
        (n, heads, value_dim, key_dim), float32.
    """
    args = (h, h_index, starts, lengths, k, v, a, beta, A_log, dt_bias, lower_bound)
    flags = (use_qk_l2norm_in_kernel, beta_is_raw)
    if k.is_cuda:
        from .advance_delta_triton import advance_kda_triton

        return advance_kda_triton(*args, *flags)
    return advance_kda_torch(*args, *flags)


def advance_kda_torch(
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
    """`advance_kda` in float64."""

    def gain(tokens: slice) -> Tensor:
        value = beta[0, tokens].to(COMPUTE)
        return torch.sigmoid(value) if beta_is_raw else value

    return advance_delta_rule_torch(
        *(h, h_index, starts, lengths, k, v),
        log_decay=lambda tokens: log_decay(a[0, tokens], A_log, dt_bias, lower_bound),
        beta=gain,
        l2norm=use_qk_l2norm_in_kernel,
    )

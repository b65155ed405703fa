"""States of gated delta-net layers (Qwen3-Next) between chunk boundaries."""

from torch import Tensor

from .advance_delta import advance_delta_rule_torch
from .delta_rule import COMPUTE


def advance_gdn(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> Tensor:
    """Advance chunk-boundary states by up to a chunk of tokens each.

    Per value head and token: ``S <- exp(g) S``, ``u = beta (v - S k)``, ``S <- S + u k^T``
    (Yang et al., 2024, arXiv 2412.06464). Inputs are those of SGLang's
    ``chunk_gated_delta_rule``, boundary states the ``h`` that it returns.

    Args:
        h: (m, value_heads, value_dim, key_dim), boundary states of any float type.
        h_index: (n,) row of `h` from which each checkpoint starts.
        starts: (n,) flattened index of the first token to consume.
        lengths: (n,) number of tokens to consume; 0 gives the boundary state itself.
        k: (1, tokens, key_heads, key_dim).
        v: (1, tokens, value_heads, value_dim); value heads are a multiple of key heads.
        g: (1, tokens, value_heads), natural log of each token's decay, not summed up.
        beta: (1, tokens, value_heads), between 0 and 1.
        use_qk_l2norm_in_kernel: keys are divided by their length first. Unlike SGLang's chunk
            kernel, which rounds them to their type again, they stay in full precision.

    Returns:
        (n, value_heads, value_dim, key_dim), float32.
    """
    args = (h, h_index, starts, lengths, k, v, g, beta, use_qk_l2norm_in_kernel)
    if k.is_cuda:
        from .advance_delta_triton import advance_gdn_triton

        return advance_gdn_triton(*args)
    return advance_gdn_torch(*args)


def advance_gdn_torch(
    h: Tensor,
    h_index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> Tensor:
    """`advance_gdn` in float64."""
    return advance_delta_rule_torch(
        *(h, h_index, starts, lengths, k, v),
        log_decay=lambda tokens: g[0, tokens].to(COMPUTE)[..., None],
        beta=lambda tokens: beta[0, tokens].to(COMPUTE),
        l2norm=use_qk_l2norm_in_kernel,
    )

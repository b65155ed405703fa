"""Costs of layers with a fixed-size state: state-space, delta-rule and short convolution.

Conventions are those of `costs`. Sizes are those of the whole model; each function
returns the costs of one of ``shards`` shards.

A checkpoint holds what SGLang's state pool holds per layer: the recurrent state in its
own type (``ssm_dtype_bytes``) and the last ``conv_kernel - 1`` inputs of the causal
convolution (``conv_dtype_bytes``).

FLOPs of a recurrence are those of its step form, per token and state element. Chunked
kernels compute the same with more, but matrix-shaped FLOPs, of the same order and also
linear in the length.
"""

from __future__ import annotations

from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.sharding import divided, divided_or_replicated


def mamba1(
    hidden: int,
    inner: int,
    state_dim: int,
    dt_rank: int,
    conv_kernel: int,
    ssm_dtype_bytes: float,
    conv_dtype_bytes: float,
    *,
    shards: int = 1,
) -> LayerCosts:
    """Mamba-1 layer (Gu and Dao, "Mamba", 2023), as in Jamba.

    The state is ``inner x state_dim``; the convolution sees the ``inner`` channels of x.
    FLOPs per token: projections to x and gate, of x to dt (rank ``dt_rank``), B and C, of
    dt to ``inner``, and out; convolution. Per state element: dt * A (1), dt * x * B (1),
    decay (1), addition (1) and the contraction with C (2).
    """
    inner = divided(inner, shards, "Mamba channels")
    return LayerCosts(
        state_bytes=inner * state_dim * ssm_dtype_bytes
        + inner * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=2 * hidden * 2 * inner
        + 2 * conv_kernel * inner
        + 2 * inner * (dt_rank + 2 * state_dim)
        + 2 * dt_rank * inner
        + 6 * inner * state_dim
        + 2 * inner * hidden,
        kind="Mamba-1",
    )


def mamba2(
    hidden: int,
    heads: int,
    head_dim: int,
    groups: int,
    state_dim: int,
    conv_kernel: int,
    ssm_dtype_bytes: float,
    conv_dtype_bytes: float,
    *,
    shards: int = 1,
) -> LayerCosts:
    """Mamba-2 layer (SSD; Dao and Gu, "Transformers are SSMs", 2024).

    The state is ``heads x head_dim x state_dim``; the convolution sees x, B and C, that is
    ``heads * head_dim + 2 * groups * state_dim`` channels. Groups that are fewer than the
    shards are replicated. FLOPs per token: projections to gate, x, B, C and dt, and out;
    convolution. Per state element: decay (1), the outer product of dt * x and B added to
    it (2), and the contraction with C (2).
    """
    heads = divided(heads, shards, "Mamba heads")
    groups = divided_or_replicated(groups, shards, "Mamba groups")
    inner = heads * head_dim
    conv_channels = inner + 2 * groups * state_dim
    return LayerCosts(
        state_bytes=inner * state_dim * ssm_dtype_bytes
        + conv_channels * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=2 * hidden * (inner + conv_channels + heads)
        + 2 * conv_kernel * conv_channels
        + 5 * inner * state_dim
        + 2 * inner * hidden,
        kind="Mamba-2",
    )


_DELTA_RULE_FLOPS = 7
"""Per state element: decay (1), the value that the state predicts for k (2), the outer
product of k and the correction added (2), and the read-out with q (2)."""


def gated_delta_net(
    hidden: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    conv_kernel: int,
    ssm_dtype_bytes: float,
    conv_dtype_bytes: float,
    *,
    shards: int = 1,
) -> LayerCosts:
    """Gated delta-net layer (Yang et al., 2024, arXiv 2412.06464), as in Qwen3-Next.

    The state is ``value_heads x key_dim x value_dim``; the convolution sees Q, K and V.
    FLOPs per token: projections to Q, K, V, output gate, and to beta and decay of every
    value head, and out; convolution; the delta rule.
    """
    key_heads = divided(key_heads, shards, "key heads")
    value_heads = divided(value_heads, shards, "value heads")
    conv_channels = 2 * key_heads * key_dim + value_heads * value_dim
    state = value_heads * key_dim * value_dim
    values = value_heads * value_dim
    return LayerCosts(
        state_bytes=state * ssm_dtype_bytes + conv_channels * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=2 * hidden * (conv_channels + values + 2 * value_heads)
        + 2 * conv_kernel * conv_channels
        + _DELTA_RULE_FLOPS * state
        + 2 * values * hidden,
        kind="gated delta-net",
    )


def kimi_delta_attention(
    hidden: int,
    heads: int,
    head_dim: int,
    conv_kernel: int,
    ssm_dtype_bytes: float,
    conv_dtype_bytes: float,
    *,
    shards: int = 1,
) -> LayerCosts:
    """Kimi delta attention, KDA (Kimi Team, "Kimi Linear", 2025, arXiv 2510.26692).

    A gated delta-net whose decay is a vector per head: the state is
    ``heads x head_dim x head_dim``, the convolutions see Q, K and V. FLOPs per token:
    projections to Q, K, V and beta; decay and output gate through a bottleneck of
    ``head_dim`` (its first half is computed on every shard); out; convolutions; the delta
    rule.
    """
    heads = divided(heads, shards, "linear-attention heads")
    inner = heads * head_dim
    state = inner * head_dim
    return LayerCosts(
        state_bytes=state * ssm_dtype_bytes + 3 * inner * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=2 * hidden * (3 * inner + heads)
        + 2 * 2 * head_dim * (hidden + inner)
        + 2 * conv_kernel * 3 * inner
        + _DELTA_RULE_FLOPS * state
        + 2 * inner * hidden,
        kind="Kimi delta attention",
    )


def short_convolution(
    hidden: int, conv_kernel: int, conv_dtype_bytes: float, *, shards: int = 1
) -> LayerCosts:
    """Gated short convolution, as in LFM2 (Liquid AI, 2025).

    The window of the convolution over ``hidden`` channels is all the state there is. FLOPs
    per token: projections to B, C and x, and out; convolution.
    """
    channels = divided(hidden, shards, "channels")
    return LayerCosts(
        state_bytes=channels * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=2 * hidden * 3 * channels + 2 * conv_kernel * channels + 2 * channels * hidden,
        kind="short convolution",
    )

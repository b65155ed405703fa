"""What a cached prefix costs in bytes and saves in FLOPs.

Every layer is described by four numbers: bytes of KV per token, bytes of one
checkpoint (the state of all its tokens), and the coefficients of its prefill
cost ``F(L) = linear * L + quadratic * L**2``. A model is the sum of its layers.

A multiply-add counts as two FLOPs. Attention is counted without the causal
half, as in the paper (Pan et al., "Marconi", MLSys 2025, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCosts:
    """Costs of one layer of one kind.

    Attributes:
        kv_bytes_per_token: bytes that one token's KV occupies.
        state_bytes: bytes of one checkpoint, convolution window included.
        flops_linear: FLOPs per token.
        flops_quadratic: FLOPs per squared token (attention only).
    """

    kv_bytes_per_token: float = 0.0
    state_bytes: float = 0.0
    flops_linear: float = 0.0
    flops_quadratic: float = 0.0


@dataclass(frozen=True)
class ModelCosts:
    """Costs of a whole model, or of one tensor-parallel shard of it."""

    kv_bytes_per_token: float
    state_bytes: float
    flops_linear: float
    flops_quadratic: float

    def __post_init__(self) -> None:
        if self.kv_bytes_per_token < 0 or self.state_bytes <= 0:
            raise ValueError(
                f"a hybrid model needs state_bytes > 0 and kv_bytes_per_token >= 0, got "
                f"{self.state_bytes=} {self.kv_bytes_per_token=}"
            )
        if self.flops_linear <= 0 or self.flops_quadratic < 0:
            raise ValueError(
                f"prefill must cost something: {self.flops_linear=} {self.flops_quadratic=}"
            )

    @classmethod
    def of(cls, layers: Iterable[LayerCosts], *, shards: int = 1) -> ModelCosts:
        """Sum of ``layers``, divided evenly over ``shards`` tensor-parallel ranks."""
        kv = state = linear = quadratic = 0.0
        for layer in layers:
            kv += layer.kv_bytes_per_token
            state += layer.state_bytes
            linear += layer.flops_linear
            quadratic += layer.flops_quadratic
        return cls(kv / shards, state / shards, linear / shards, quadratic / shards)

    def prefill_flops(self, tokens: int) -> float:
        """FLOPs to prefill ``tokens`` tokens from nothing."""
        return (self.flops_linear + self.flops_quadratic * tokens) * tokens

    def saved_flops(self, depth: int, ancestor_depth: int) -> float:
        """FLOPs that a hit at ``depth`` saves over a hit at ``ancestor_depth`` (tokens)."""
        return self.prefill_flops(depth) - self.prefill_flops(ancestor_depth)


def attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, kv_dtype_bytes: float
) -> LayerCosts:
    """Multi-head or grouped-query attention.

    Projections: Q and O take ``hidden x heads*head_dim``, K and V
    ``hidden x kv_heads*head_dim``; scores and weighted sum take
    ``2 * heads*head_dim`` FLOPs each per pair of tokens. With MHA and
    ``heads*head_dim == hidden`` this is the paper's ``8 L D^2 + 4 L^2 D``.
    """
    q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
    return LayerCosts(
        kv_bytes_per_token=2 * kv_dim * kv_dtype_bytes,
        flops_linear=2 * hidden * (2 * q_dim + 2 * kv_dim),
        flops_quadratic=4 * q_dim,
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
) -> LayerCosts:
    """Mamba-2 (SSD) layer.

    The state is ``heads x head_dim x state_dim``; the convolution window keeps
    ``conv_kernel - 1`` columns of ``inner + 2 * groups * state_dim`` channels.
    FLOPs per token: the input projection gives gate, x, B, C and dt; then the
    convolution; decay, outer product and addition of the state update and its
    contraction with C (2 FLOPs each for the last two, 1 for decay and addition,
    per state element); and the output projection.
    """
    inner = heads * head_dim
    conv_channels = inner + 2 * groups * state_dim
    in_proj = 2 * hidden * (2 * inner + 2 * groups * state_dim + heads)
    return LayerCosts(
        state_bytes=inner * state_dim * ssm_dtype_bytes
        + conv_channels * (conv_kernel - 1) * conv_dtype_bytes,
        flops_linear=in_proj
        + 2 * conv_kernel * conv_channels
        + 6 * inner * state_dim
        + 2 * inner * hidden,
    )


def mlp(hidden: int, intermediate: int, matrices: int) -> LayerCosts:
    """Feed-forward layer of ``matrices`` weight matrices (2, or 3 when gated)."""
    return LayerCosts(flops_linear=2 * matrices * hidden * intermediate)


def moe(
    hidden: int,
    experts: int,
    active_experts: int,
    intermediate: int,
    shared_intermediate: int,
    matrices: int,
) -> LayerCosts:
    """Mixture of experts: router, ``active_experts`` routed experts, shared expert."""
    router = 2 * hidden * experts
    active = active_experts * intermediate + shared_intermediate
    return LayerCosts(flops_linear=router + 2 * matrices * hidden * active)


def dense(parameters: float) -> LayerCosts:
    """A block known only by its weights: one multiply-add per parameter and token."""
    return LayerCosts(flops_linear=2 * parameters)


def paper_ssm(hidden: int, state_dim: int) -> LayerCosts:
    """The paper's Mamba-1 layer in FP16 (expand 2 folded into the FLOPs, 1 in the state).

    ``12 L D^2 + 16 L D N + 10 L D`` FLOPs, that is, with the D in the last term;
    ``2 D N`` bytes of state and ``(2D + 2N) * 4 * 2`` bytes of convolution.
    """
    d, n = hidden, state_dim
    return LayerCosts(
        state_bytes=2 * d * n + (2 * d + 2 * n) * 4 * 2,
        flops_linear=12 * d * d + 16 * d * n + 10 * d,
    )


def paper_7b() -> ModelCosts:
    """The paper's 7B hybrid: 4 attention, 24 SSM, 28 MLP layers, D=4096, N=128."""
    d, n = 4096, 128
    layers = [attention(d, 32, 32, 128, 2)] * 4 + [paper_ssm(d, n)] * 24 + [mlp(d, 4 * d, 2)] * 28
    return ModelCosts.of(layers)

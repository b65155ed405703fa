"""Costs of attention layers: grouped-query, sliding-window and latent.

Conventions are those of `costs`. ``heads`` and the like are those of the whole
model; each function returns the costs of one of ``shards`` shards.
"""

from __future__ import annotations

from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.sharding import divided, divided_or_replicated


def score_flops(
    heads: int, key_dim: int, value_dim: int, window: int | None = None
) -> tuple[float, float]:
    """Linear and quadratic FLOPs of attention scores and the weighted sum of the values.

    A pair of tokens costs ``2 * key_dim`` for its score and ``2 * value_dim`` for its
    part of the sum, in every head; ``L`` tokens make ``L**2`` pairs.

    With a sliding window of ``W`` tokens a token meets at most ``W`` others, so the
    cost is ``L * W`` pairs: linear. This is exact, in the convention that does not
    halve, from ``L = W`` on; below it the ``L**2`` pairs are overestimated, by less than
    the cost of one window. Hence a model's cost keeps the form
    ``(linear + quadratic * L) * L``.
    """
    per_pair = 2.0 * heads * (key_dim + value_dim)
    return (0.0, per_pair) if window is None else (per_pair * window, 0.0)


def attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    kv_dtype_bytes: float,
    *,
    input_dim: int | None = None,
    gate_dim: int = 0,
    window: int | None = None,
    shards: int = 1,
) -> LayerCosts:
    """Multi-head or grouped-query attention, over all tokens or a sliding window.

    Q and O take ``heads * head_dim`` columns, K and V ``kv_heads * head_dim`` each;
    `score_flops` has the rest. With MHA and ``heads * head_dim == hidden`` this is the
    paper's ``8 L D^2 + 4 L^2 D`` FLOPs and ``4 L D`` bytes (FP16).

    Every token's KV is counted, with a window too: a hit may end anywhere, and needs the
    window before its end. (A cache that drops KV outside the window of every checkpoint
    holds less: ``window`` tokens per checkpoint.)

    Args:
        hidden: width of the residual stream.
        heads, kv_heads: query heads and KV heads. Each shard keeps at least one KV head:
            with fewer than ``shards`` they are replicated, and so are their projections.
        head_dim: size of a head.
        kv_dtype_bytes: bytes of an element of K and V.
        input_dim: input width of Q, K and V where it is not ``hidden``.
        gate_dim: columns per head of a projected output gate, 0 for none.
        window: tokens of a sliding window, None for all.
        shards: tensor-parallel shards.
    """
    query_heads = divided(heads, shards, "attention heads")
    kv_heads = divided_or_replicated(kv_heads, shards, "KV heads")
    columns = query_heads * (head_dim + gate_dim) + 2 * kv_heads * head_dim
    linear, quadratic = score_flops(query_heads, head_dim, head_dim, window)
    return LayerCosts(
        kv_bytes_per_token=2 * kv_heads * head_dim * kv_dtype_bytes,
        flops_linear=2 * (input_dim or hidden) * columns
        + 2 * query_heads * head_dim * hidden
        + linear,
        flops_quadratic=quadratic,
        kind="attention" if window is None else "sliding-window attention",
    )


def latent_attention(
    hidden: int,
    heads: int,
    latent_dim: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    kv_dtype_bytes: float,
    *,
    query_latent_dim: int | None = None,
    shards: int = 1,
) -> LayerCosts:
    """Multi-head latent attention (MLA; DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).

    A token keeps one latent vector of ``latent_dim`` and one key of ``rope_dim`` shared by
    all heads. Neither has heads to divide, so **every shard holds all of it**, and the
    projection down to them (and to the latent query) is computed on every shard.

    Prefill multiplies the latents out: per token Q (``heads * (nope + rope)`` columns),
    the projection down, K and V from the latent (``heads * (nope + value)`` columns), and
    O; scores over ``nope + rope``, sum over ``value``. Decode kernels fold K and V into Q
    and O instead; that costs more per pair and is not what a prefix cache saves.

    Args:
        latent_dim, rope_dim: ``kv_lora_rank`` and ``qk_rope_head_dim`` of a configuration.
        nope_dim, value_dim: ``qk_nope_head_dim`` and ``v_head_dim``.
        query_latent_dim: ``q_lora_rank``, None where Q is projected directly.
        hidden, heads, kv_dtype_bytes, shards: as in `attention`.
    """
    heads = divided(heads, shards, "attention heads")
    query = 2 * heads * (nope_dim + rope_dim) * (query_latent_dim or hidden)
    if query_latent_dim:
        query += 2 * hidden * query_latent_dim
    linear, quadratic = score_flops(heads, nope_dim + rope_dim, value_dim)
    return LayerCosts(
        kv_bytes_per_token=(latent_dim + rope_dim) * kv_dtype_bytes,
        flops_linear=query
        + 2 * hidden * (latent_dim + rope_dim)
        + 2 * latent_dim * heads * (nope_dim + value_dim)
        + 2 * heads * value_dim * hidden
        + linear,
        flops_quadratic=quadratic,
        kind="latent attention",
    )

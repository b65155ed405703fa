"""Costs of layers that hold nothing: MLP, mixture of experts, and weights in general.

Conventions are those of `costs`. Each function returns the costs of one of
``shards`` shards; weights divide evenly, a router is computed on every shard.
"""

from __future__ import annotations

from sglang_hybrid.core.costs import LayerCosts


def mlp(hidden: int, intermediate: int, matrices: int, *, shards: int = 1) -> LayerCosts:
    """Feed-forward layer of ``matrices`` weight matrices (2, or 3 when gated)."""
    return LayerCosts(flops_linear=2 * matrices * hidden * intermediate / shards, kind="MLP")


def moe(
    hidden: int,
    experts: int,
    active_experts: int,
    intermediate: int,
    shared_intermediate: int,
    matrices: int,
    *,
    latent_dim: int | None = None,
    shards: int = 1,
) -> LayerCosts:
    """Mixture of experts: router, ``active_experts`` routed experts, shared expert.

    Args:
        hidden: width of the residual stream.
        experts: outputs of the router.
        active_experts: routed experts that a token visits. Only they are computed.
        intermediate, shared_intermediate: widths of one routed expert and of the shared
            one (0 for none).
        matrices: weight matrices of an expert (2, or 3 when gated).
        latent_dim: width on which routed experts work, if they work on a projection.
        shards: tensor-parallel shards.
    """
    router = 2 * hidden * experts
    routed = 2 * matrices * (latent_dim or hidden) * active_experts * intermediate
    projections = 2 * 2 * hidden * latent_dim if latent_dim else 0
    shared = 2 * matrices * hidden * shared_intermediate
    return LayerCosts(flops_linear=router + (routed + projections + shared) / shards, kind="MoE")


def dense(parameters: float, *, shards: int = 1, kind: str = "dense") -> LayerCosts:
    """A block known only by its weights: one multiply-add per parameter and token."""
    return LayerCosts(flops_linear=2 * parameters / shards, kind=kind)

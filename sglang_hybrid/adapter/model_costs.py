"""Costs of the model that a server has loaded.

Bytes are read off the pools themselves, so dtypes, tensor-parallel shards and
paddings are those in use; FLOPs come from the model's configuration.
"""

from __future__ import annotations

import logging
from dataclasses import astuple
from typing import Any

import torch

from sglang_hybrid.core.costs import LayerCosts, ModelCosts
from sglang_hybrid.core.feed_forward_costs import dense
from sglang_hybrid.core.model_layers import Dtypes, layers_of

logger = logging.getLogger(__name__)


def kv_bytes_per_token(kv_pool: Any) -> float:
    """Bytes of one token's KV over all attention layers of this rank."""
    attention_pool = getattr(kv_pool, "full_kv_pool", kv_pool)
    if attention_pool.host_capacity_tokens is not None:
        # It shares memory with the states, and counts no bytes as its own.
        return float(attention_pool.host_capacity_bytes / attention_pool.host_capacity_tokens)
    # One page beyond `size` takes the writes of padded tokens.
    tokens = attention_pool.size + attention_pool.page_size
    size = attention_pool.get_kv_size_bytes()
    # Of keys and of values, or of the one latent that MLA makes both from.
    return (sum(size) if isinstance(size, tuple) else size) / tokens


def state_bytes(mamba_pool: Any) -> float:
    """Bytes of one checkpoint over all state layers of this rank."""
    cache = mamba_pool.mamba_cache
    tensors = [cache.temporal, *cache.conv]
    return sum(t.numel() * t.element_size() / t.shape[1] for t in tensors)


def model_costs(
    config: Any, kv_pool: Any, mamba_pool: Any, parameters: int, shards: int
) -> ModelCosts:
    """Costs on this rank.

    Args:
        config: the Hugging Face text configuration.
        kv_pool: the token pool with the attention layers' KV.
        mamba_pool: the pool of states.
        parameters: weights of the model on this rank, the fallback measure of FLOPs.
        shards: tensor-parallel ranks that share the FLOPs.
    """
    flops = ModelCosts.of([*_layers(config, parameters, shards), LayerCosts(state_bytes=1)])
    return ModelCosts(
        kv_bytes_per_token=kv_bytes_per_token(kv_pool),
        state_bytes=state_bytes(mamba_pool),
        flops_linear=flops.flops_linear,
        flops_quadratic=flops.flops_quadratic,
    )


def equal_on_all_ranks(costs: ModelCosts, group: torch.distributed.ProcessGroup) -> ModelCosts:
    """The largest figures of ``group``'s ranks, which all call this.

    Ranks weigh states by them and must choose the same victims. They differ where a model is
    not known and its weights are not split evenly.
    """
    figures = torch.tensor(astuple(costs), dtype=torch.float64)
    torch.distributed.all_reduce(figures, torch.distributed.ReduceOp.MAX, group)
    return ModelCosts(*figures.tolist())


def _layers(config: Any, parameters: int, shards: int) -> list[LayerCosts]:
    """The model's layers on this rank; a configuration that is not understood is no reason
    not to serve it."""
    try:
        layers = layers_of(config, Dtypes(), shards=shards)
        reason = "it is not known"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        layers, reason = None, str(error)
    if layers is not None:
        return layers
    logger.warning(
        "hybrid-marconi: FLOPs of model type %r are estimated from its %.1fM weights "
        "(experts that are not active included), as %s; eviction weighs lengths only roughly.",
        config.model_type,
        parameters / 1e6,
        reason,
    )
    return [dense(parameters)]

"""Builds the cache for SGLang's registry of radix-cache backends."""

from __future__ import annotations

import functools
import logging

from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache

from sglang_hybrid.adapter import hooks
from sglang_hybrid.adapter.cache import HybridMarconiCache
from sglang_hybrid.adapter.model_costs import equal_on_all_ranks, model_costs
from sglang_hybrid.adapter.saving_layers import family_of
from sglang_hybrid.config import CacheConfig

logger = logging.getLogger(__name__)


def create_cache(ctx: TreeCacheBuildContext, config: CacheConfig) -> HybridMarconiCache:
    """The cache of one scheduler process."""
    params, runner = ctx.params, ctx.tp_worker.model_runner
    model = runner.model
    costs = model_costs(
        ctx.model_config.hf_text_config,
        params.token_to_kv_pool_allocator.get_kvcache(),
        params.req_to_token_pool.mamba_pool,
        sum(p.numel() for p in model.parameters()),
        ctx.tp_size,
    )
    if ctx.tp_size > 1:
        costs = equal_on_all_ranks(costs, params.tp_cache_group)
    logger.info(
        "hybrid-marconi: policy %s; a checkpoint takes %d bytes, as much as the KV of %.0f tokens.",
        config.policy_in_words(),
        costs.state_bytes,
        costs.state_bytes / max(costs.kv_bytes_per_token, 1),
    )
    family = None
    if config.branch_checkpoint != "chunk":
        family = family_of(runner)
        hooks.install((*hooks.SAVING, *(hooks.LAYERS[family.name] if family else ())))
    build = functools.partial(
        HybridMarconiCache, config=config, costs=costs, family=family, ranks=ctx.tp_size
    )
    cache = create_unified_radix_cache(ctx, cache_class=build)
    if cache.branch_checkpoint != config.branch_checkpoint:
        logger.warning(
            "hybrid-marconi: this model's prefill returns no states inside a prompt, so prefills "
            'are cut at branch points ("branch_checkpoint": "split").'
        )
    return cache

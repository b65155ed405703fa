"""What runs in a scheduler: building the cache, cutting prefill, reporting."""

from __future__ import annotations

import logging
from typing import Any

from sglang_hybrid.adapter import hooks, record, record_export

logger = logging.getLogger(__name__)

STATE_KEY = "hybrid_marconi"
"""Key of the cache's state in `internal_states` of `/server_info`, one per DP rank."""


def register_backend() -> None:
    """Make `--radix-cache-backend hybrid-marconi` known to SGLang in this process."""
    from sglang.srt.mem_cache.registry import (
        register_radix_cache_backend,
        registered_radix_cache_backends,
    )

    if record.CACHE_NAME not in registered_radix_cache_backends():
        register_radix_cache_backend(record.CACHE_NAME, build_cache)


def build_cache(ctx: Any) -> Any:
    """Factory of the registered backend; `ctx` is SGLang's `TreeCacheBuildContext`.

    Raises:
        RuntimeError: the launcher did not check the configuration, or a hook is not in
            place; the server must not come up like that.
    """
    if not record.notes_of(ctx.server_args).validated:
        raise RuntimeError(
            "the launcher did not check the configuration of the cache, because the plugin of "
            "sglang-hybrid was not active there; run `hybrid-marconi doctor`"
        )
    hooks.install((*hooks.LAUNCH, *hooks.SCHEDULER))
    from sglang_hybrid.adapter.factory import create_cache

    return create_cache(ctx, record.config_of(ctx.server_args))


def prefill_adder_class(original: type, _scheduler: Any) -> type:
    """Hook after `Scheduler.get_prefill_adder_class`."""
    from sglang_hybrid.adapter.prefill import adder_class

    replacement: type = adder_class(original)
    return replacement


def bind_scheduler(_result: None, scheduler: Any) -> None:
    """Hook after `Scheduler.init_request_receiver`, when the cache and the tokenizer are there."""
    from sglang_hybrid.adapter.cache import HybridMarconiCache

    if isinstance(scheduler.tree_cache, HybridMarconiCache):
        scheduler.tree_cache.bind(scheduler)


def internal_state(reply: Any, scheduler: Any, _request: Any) -> Any:
    """Hook after `Scheduler.get_internal_state`: add the configuration in effect and counters."""
    try:
        status = {"dp_rank": dp_rank(), **scheduler.tree_cache.status()}
        if (part := record_export.of(scheduler).take()) is not None:
            status[record_export.PART_KEY] = part
    except Exception as error:  # a report must not end a scheduler that serves
        logger.exception("The state of the cache could not be reported")
        status = {"error": f"{type(error).__name__}: {error}"}
    reply.internal_state[STATE_KEY] = status
    return reply


def dp_rank() -> int:
    """Which replica this scheduler is, or which part of attention's data parallelism.

    SGLang lists the ranks' states in the order in which they arrive.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    rank: int = parallel.attn_dp_rank if parallel.attn_dp_size > 1 else parallel.dp_rank or 0
    return rank

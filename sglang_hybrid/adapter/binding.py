"""What the cache gets from a scheduler that is up: tokenizer, recorder, tuner."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_parallel

from sglang_hybrid.adapter import system_end
from sglang_hybrid.adapter.decisions import DecisionReceiver
from sglang_hybrid.adapter.recorder import Recorder
from sglang_hybrid.adapter.tuning import Tuning

if TYPE_CHECKING:
    from sglang_hybrid.adapter.cache import HybridMarconiCache

logger = logging.getLogger(__name__)


def bind(cache: HybridMarconiCache, scheduler: Any) -> None:
    """Complete ``cache`` when its scheduler has its tokenizer and its request receiver."""
    config, parallel = cache.config, get_parallel()
    # The rank that reads the requests: it records and decides, for its replica alone.
    leads = parallel.pp_rank == parallel.attn_tp_rank == parallel.attn_cp_rank == 0
    if config.system_end:
        found = system_end.of_tokenizer(scheduler.tokenizer, scheduler.server_args.chat_template)
        cache.wanted.system_end = found
        if found is None and leads:
            logger.info(
                "hybrid-marconi: the chat template does not tell where the system message ends; "
                "no checkpoints there."
            )
    if leads and (config.is_tuned or config.record_requests):
        cache.recorder = Recorder(config.tuner_window, config.record_requests)
    if config.is_tuned:
        chunk = scheduler.chunked_prefill_size or 0
        cache.tuning = Tuning.of(cache, max(chunk, 0), decides=leads)
        scheduler.request_receiver = DecisionReceiver(
            scheduler.request_receiver, cache.tuning.pending, cache.tuning.take
        )

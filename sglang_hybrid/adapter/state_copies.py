"""Copies between slots of SGLang's state pool, all layers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.layers.attention import hybrid_linear_attn_backend
from torch import Tensor

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool


def is_plain(pool: HybridReqToTokenPool) -> bool:
    """Whether a slot is one convolution state and one SSM state per layer, nothing else."""
    return len(pool.mamba_pool.mamba_cache.conv) == 1 and not pool.mamba_pool._slot_siblings


def copy_states(
    pool: HybridReqToTokenPool, sources: Tensor, targets: Tensor, wanted: Tensor
) -> None:
    """Copy where ``wanted``, by SGLang's kernel of decode: one launch, nothing in between.

    Args:
        pool: one that `is_plain`.
        sources, targets: (n,) slots, as requests know them.
        wanted: (n,) bool.
    """
    states, translate = pool.mamba_pool.mamba_cache, pool.translate_mamba_indices
    hybrid_linear_attn_backend.track_mamba_states_all_layers(
        states.conv[0],
        states.temporal,
        translate(sources),
        wanted,
        translate(targets),
        len(sources),
        # Where memory is shared, a slot may be freed before the forward gets to it.
        check_freed_slots=True,
    )

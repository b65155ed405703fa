"""The served cache's configuration in the simulator's terms."""

from __future__ import annotations

from sglang_hybrid.config import CacheConfig
from sglang_hybrid.sim.admission import Admission


def admission_of(config: CacheConfig, grid: int, chunk_tokens: int) -> Admission:
    """What the served cache admits.

    Args:
        grid: tokens between two states that it can take.
        chunk_tokens: of a prefill chunk, 0 where prefill is not chunked.

    `prompt_end` "always" cannot be told apart from chunk boundaries that are first
    victims; boundaries are then left out.
    """
    always = config.prompt_end == "always"
    keeps_chunks = config.chunk_boundary != "never" and not always
    return Admission(
        name="served",
        branch=grid,
        branch_full=True,
        decode_end=grid,
        prompt_end=0 if config.prompt_end == "never" else grid,
        ghost_forks=int(config.ghost_forks),
        system_end=config.system_end,
        min_gain_tokens=config.min_gain_tokens,
        chunk_tokens=chunk_tokens if keeps_chunks else 0,
        first_victims=not always,
    )

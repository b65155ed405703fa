"""A tensor-parallel rank whose costs differ from the other's. Imports no SGLang: it is slow."""

import torch

from sglang_hybrid.adapter.model_costs import equal_on_all_ranks
from sglang_hybrid.core.costs import ModelCosts


def put_costs_of_rank(rank: int, store: str, results) -> None:
    """Put the costs that rank ``rank`` of two weighs by into ``results``."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    costs = ModelCosts(8.0, 100.0 + rank, 3e12 - rank, 5e6)
    results.put(equal_on_all_ranks(costs, torch.distributed.group.WORLD))
    torch.distributed.destroy_process_group()

"""Costs are read off the real pools."""

import logging
from types import SimpleNamespace

from harness import KV_LAYERS, STATE_LAYERS, make_pools, publish_server_args

from sglang_hybrid.adapter.model_costs import model_costs


def test_bytes_are_those_of_the_pools_and_unknown_models_are_estimated(caplog):
    publish_server_args(1)
    req_pool, allocator = make_pools(8, 128, 4, False, 1)
    with caplog.at_level(logging.WARNING):
        costs = model_costs(
            SimpleNamespace(model_type="novel"),
            allocator.get_kvcache(),
            req_pool.mamba_pool,
            parameters=1000,
            shards=2,
        )
    # One head of two bfloat16 values, K and V.
    assert costs.kv_bytes_per_token == len(KV_LAYERS) * 2 * 2 * 2
    # 2 heads x 8 x 4 float32 values, and 3 columns of 16 + 2 * 4 bfloat16 channels.
    assert costs.state_bytes == len(STATE_LAYERS) * (2 * 8 * 4 * 4 + 3 * (16 + 2 * 4) * 2)
    # The weights are those of this rank already.
    assert costs.flops_linear == 2000
    assert "novel" in caplog.text

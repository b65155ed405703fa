"""The hybrid model of the paper, and the paper's own formulas.

Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025, appendix;
FP16 throughout.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sglang_hybrid.core.attention_costs import attention
from sglang_hybrid.core.config_fields import Dtypes
from sglang_hybrid.core.costs import LayerCosts
from sglang_hybrid.core.feed_forward_costs import mlp

_FP16_BYTES = 2


def paper_ssm(hidden: int, state_dim: int, ssm_bytes_per_state_dim: int = 2) -> LayerCosts:
    """The paper's Mamba-1 layer.

    ``12 L D^2 + 16 L D N + 10 L D`` FLOPs (expansion of 2 folded in), ``2 D N`` bytes of
    state (expansion 1, FP16) and ``(2D + 2N) * 4 * 2`` bytes of convolution. FLOPs saved
    per byte of state are thus ``L (6D/N + 8 + 5/N)``: the form **with** the D in the last
    term. The article writes ``(12 L D^2 + 16 L D N + 10 L) / 2DN``, without it; the two
    differ by about 0.02 % for D = 4096 and N = 128.

    Args:
        hidden, state_dim: D and N.
        ssm_bytes_per_state_dim: bytes of state per channel of D and dimension of N: 2 as
            the paper counts, 8 for an expansion of 2 in FP32.
    """
    d, n = hidden, state_dim
    return LayerCosts(
        state_bytes=ssm_bytes_per_state_dim * d * n + (2 * d + 2 * n) * 4 * 2,
        flops_linear=12 * d * d + 16 * d * n + 10 * d,
        kind="SSM (paper)",
    )


def paper_hybrid(config: Any, dtypes: Dtypes, shards: int) -> list[LayerCosts]:
    """Layers of a hybrid in the paper's form; ``dtypes`` are the paper's, not those given.

    Grouped KV heads shrink the KV only: FLOPs stay those of the paper's attention, so that
    the two presets differ in bytes alone. Everything divides evenly over shards.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    mha = attention(hidden, heads, heads, hidden // heads, _FP16_BYTES)
    kv_bytes = mha.kv_bytes_per_token * config.num_key_value_heads / heads
    layers = [dataclasses.replace(mha, kv_bytes_per_token=kv_bytes)] * config.attention_layers
    ssm = paper_ssm(hidden, config.state_dim, config.ssm_bytes_per_state_dim)
    layers += [ssm] * config.ssm_layers + [mlp(hidden, 4 * hidden, 2)] * config.mlp_layers
    return [
        dataclasses.replace(
            layer,
            kv_bytes_per_token=layer.kv_bytes_per_token / shards,
            state_bytes=layer.state_bytes / shards,
            flops_linear=layer.flops_linear / shards,
            flops_quadratic=layer.flops_quadratic / shards,
        )
        for layer in layers
    ]

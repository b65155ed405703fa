"""Formulas of single layers: bytes, counts of matrix products, tensor-parallel shards."""

import pytest

from sglang_hybrid.core import attention_costs, feed_forward_costs, state_costs
from sglang_hybrid.core.attention_costs import attention, latent_attention


def flops(products):
    """FLOPs of matrix products given as (rows, inner, columns)."""
    return sum(2 * m * k * n for m, k, n in products)


def test_grouped_query_attention_matches_a_count_of_its_matrix_products():
    hidden, heads, kv_heads, head_dim, length = 48, 6, 2, 8, 10
    products = [(length, hidden, heads * head_dim)]  # Q
    products += [(length, hidden, kv_heads * head_dim)] * 2  # K, V
    products += [(length, heads * head_dim, hidden)]  # O
    products += [(length, head_dim, length), (length, length, head_dim)] * heads
    layer = attention(hidden, heads, kv_heads, head_dim, 2)
    assert layer.prefill_flops(length) == flops(products)
    assert layer.kv_bytes_per_token == 2 * kv_heads * head_dim * 2


def test_an_8_bit_kv_takes_half():
    wide, narrow = (attention(48, 6, 2, 8, size).kv_bytes_per_token for size in (2, 1))
    assert narrow * 2 == wide


@pytest.mark.parametrize("length", [8, 9, 40])
def test_a_windows_flops_are_linear_and_exact_from_the_window_on(length):
    heads, head_dim, window = 4, 16, 8
    full = attention(64, heads, 2, head_dim, 2)
    windowed = attention(64, heads, 2, head_dim, 2, window=window)
    pairs = length * min(length, window)
    projections = full.flops_linear * length
    assert windowed.prefill_flops(length) - projections == 4 * heads * head_dim * pairs
    assert windowed.flops_quadratic == 0
    assert windowed.kv_bytes_per_token == full.kv_bytes_per_token


def test_below_the_window_the_overestimate_is_less_than_a_window():
    full, windowed = (attention(64, 4, 2, 16, 2, window=window) for window in (None, 100))
    whole_window = attention_costs.score_flops(4, 16, 16)[1] * 100 * 100
    for length in range(1, 100):
        error = windowed.prefill_flops(length) - full.prefill_flops(length)
        assert 0 <= error < whole_window


def test_latent_attention_keeps_one_latent_and_one_key():
    hidden, heads, latent, nope, rope, value, length = 64, 4, 24, 16, 8, 12, 10
    products = [(length, hidden, heads * (nope + rope)), (length, hidden, latent + rope)]
    products += [(length, latent, heads * (nope + value)), (length, heads * value, hidden)]
    products += [(length, nope + rope, length), (length, length, value)] * heads
    layer = latent_attention(hidden, heads, latent, nope, rope, value, 2)
    assert layer.prefill_flops(length) == flops(products)
    assert layer.kv_bytes_per_token == (latent + rope) * 2


def test_a_latent_query_is_two_products():
    direct, through = (
        latent_attention(64, 4, 24, 16, 8, 12, 2, query_latent_dim=rank) for rank in (None, 20)
    )
    difference = flops([(1, 64, 20), (1, 20, 4 * 24)]) - flops([(1, 64, 4 * 24)])
    assert through.flops_linear - direct.flops_linear == difference


@pytest.mark.parametrize("shards, heads_held", [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_fewer_kv_heads_than_shards_are_replicated(shards, heads_held):
    layer = attention(64, 16, 4, 8, 2, shards=shards)
    assert layer.kv_bytes_per_token == 2 * heads_held * 8 * 2
    products = [(1, 64, 16 // shards * 8), (1, 16 // shards * 8, 64)]
    products += [(1, 64, heads_held * 8)] * 2
    assert layer.flops_linear == flops(products)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_every_shard_holds_all_of_a_latent_kv(shards):
    layer = latent_attention(64, 4, 24, 16, 8, 12, 2, shards=shards)
    assert layer.kv_bytes_per_token == (24 + 8) * 2
    assert (
        layer.flops_quadratic * shards == latent_attention(64, 4, 24, 16, 8, 12, 2).flops_quadratic
    )


def test_states_have_the_type_of_each_part():
    mamba2 = state_costs.mamba2(64, 8, 16, 1, 32, 4, ssm_dtype_bytes=4, conv_dtype_bytes=2)
    assert mamba2.state_bytes == 8 * 16 * 32 * 4 + (8 * 16 + 2 * 32) * 3 * 2
    mamba1 = state_costs.mamba1(64, 128, 16, 4, 4, ssm_dtype_bytes=2, conv_dtype_bytes=1)
    assert mamba1.state_bytes == 128 * 16 * 2 + 128 * 3
    delta_net = state_costs.gated_delta_net(64, 2, 4, 8, 16, 4, 4, 2)
    assert delta_net.state_bytes == 4 * 8 * 16 * 4 + (2 * 2 * 8 + 4 * 16) * 3 * 2
    kda = state_costs.kimi_delta_attention(64, 4, 8, 4, 4, 2)
    assert kda.state_bytes == 4 * 8 * 8 * 4 + 3 * 4 * 8 * 3 * 2
    assert state_costs.short_convolution(64, 3, 2).state_bytes == 64 * 2 * 2


SHARDED = {
    "mamba1": lambda shards: state_costs.mamba1(64, 128, 16, 4, 4, 4, 2, shards=shards),
    "mamba2": lambda shards: state_costs.mamba2(64, 8, 16, 4, 32, 4, 4, 2, shards=shards),
    "delta-net": lambda shards: state_costs.gated_delta_net(
        64, 4, 8, 8, 16, 4, 4, 2, shards=shards
    ),
    "convolution": lambda shards: state_costs.short_convolution(64, 3, 2, shards=shards),
    "mlp": lambda shards: feed_forward_costs.mlp(64, 128, 3, shards=shards),
}


@pytest.mark.parametrize("kind", SHARDED)
def test_shards_divide_states_and_flops(kind):
    whole, part = SHARDED[kind](1), SHARDED[kind](4)
    assert part.state_bytes * 4 == whole.state_bytes
    assert part.flops_linear * 4 == whole.flops_linear


def test_what_is_computed_on_every_shard():
    # The two bottlenecks of Kimi delta attention, and a router.
    whole, part = (
        state_costs.kimi_delta_attention(64, 4, 8, 4, 4, 2, shards=shards) for shards in (1, 4)
    )
    assert part.state_bytes * 4 == whole.state_bytes
    assert part.flops_linear * 4 - whole.flops_linear == 3 * flops([(1, 64, 8)] * 2)
    whole, part = (feed_forward_costs.moe(64, 32, 2, 128, 16, 3, shards=s) for s in (1, 4))
    assert part.flops_linear * 4 - whole.flops_linear == 3 * flops([(1, 64, 32)])


def test_groups_of_mamba2_that_are_fewer_than_shards_are_replicated():
    layer = state_costs.mamba2(64, 8, 16, 1, 32, 4, 4, 2, shards=4)
    assert layer.state_bytes == 2 * 16 * 32 * 4 + (2 * 16 + 2 * 32) * 3 * 2


@pytest.mark.parametrize(
    "make, what",
    [
        (lambda: attention(64, 6, 2, 8, 2, shards=4), "6 attention heads"),
        (lambda: attention(64, 12, 4, 8, 2, shards=6), "4 KV heads"),
        (lambda: state_costs.mamba2(64, 6, 16, 1, 32, 4, 4, 2, shards=4), "6 Mamba heads"),
    ],
)
def test_unequal_shards_are_refused(make, what):
    with pytest.raises(ValueError, match=f"{what} cannot be divided over"):
        make()


def test_moe_counts_active_experts_only():
    few = feed_forward_costs.moe(64, 32, 2, 128, 0, 3)
    assert few.flops_linear == 2 * 64 * 32 + 2 * 3 * 64 * 2 * 128


def test_experts_on_a_projected_width():
    layer = feed_forward_costs.moe(64, 32, 2, 128, 16, 2, latent_dim=24)
    products = [(1, 64, 32), (1, 64, 24), (1, 24, 64)]
    products += [(1, 24, 128), (1, 128, 24)] * 2 + [(1, 64, 16), (1, 16, 64)]
    assert layer.flops_linear == flops(products)

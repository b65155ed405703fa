"""The cost model gives the paper's numbers and counts a real layer's matrix products."""

import pytest

from sglang_hybrid.core import costs
from sglang_hybrid.core.costs import LayerCosts, ModelCosts

D, N = 4096, 128


def test_one_ssm_state_equals_the_kv_of_64_tokens_of_one_attention_layer():
    conv_bytes = (2 * D + 2 * N) * 4 * 2
    state = costs.paper_ssm(D, N).state_bytes - conv_bytes
    assert state == 2**20
    assert state / costs.attention(D, 32, 32, 128, 2).kv_bytes_per_token == N / 2


def test_one_state_of_the_7b_model_is_409_tokens_of_its_kv():
    model = costs.paper_7b()
    assert model.state_bytes == 26_787_840
    assert model.kv_bytes_per_token == 65_536
    assert round(model.state_bytes / model.kv_bytes_per_token) == 409


def test_checkpoints_per_block_of_32_tokens_take_seven_and_a_half_gib():
    assert 10_240 // 32 * 24 * 2**20 == 7.5 * 2**30


def test_flops_saved_per_byte():
    length = 2000
    attention = costs.attention(D, 32, 32, 128, 2)
    per_byte = ModelCosts.of([attention, LayerCosts(state_bytes=1)]).prefill_flops(length)
    assert per_byte / (attention.kv_bytes_per_token * length) == pytest.approx(length + 2 * D)
    ssm = ModelCosts.of([costs.paper_ssm(D, N)])
    assert ssm.prefill_flops(length) / (2 * D * N) == pytest.approx(
        length * (6 * D / N + 8 + 5 / N)
    )


def test_savings_are_counted_to_the_nearest_live_checkpoint_in_all_layer_kinds():
    # Subtracting one layer kind's FLOPs from another's once made deep nodes negative.
    model = costs.paper_7b()
    assert model.saved_flops(8000, 7000) > model.saved_flops(1000, 0) > 0
    assert model.saved_flops(500, 500) == 0


def test_shards_divide_everything():
    layers = [costs.attention(64, 4, 2, 16, 2), costs.mamba2(64, 8, 16, 1, 16, 4, 4, 2)]
    whole, half = ModelCosts.of(layers), ModelCosts.of(layers, shards=2)
    assert half.state_bytes * 2 == whole.state_bytes
    assert half.prefill_flops(100) * 2 == whole.prefill_flops(100)


def test_grouped_query_attention_matches_a_count_of_its_matrix_products():
    hidden, heads, kv_heads, head_dim, length = 48, 6, 2, 8, 10
    products = [(length, hidden, heads * head_dim)]  # Q
    products += [(length, hidden, kv_heads * head_dim)] * 2  # K, V
    products += [(length, heads * head_dim, hidden)]  # O
    products += [(length, head_dim, length), (length, length, head_dim)] * heads
    count = sum(2 * m * k * n for m, k, n in products)
    layer = costs.attention(hidden, heads, kv_heads, head_dim, 2)
    assert layer.flops_linear * length + layer.flops_quadratic * length**2 == count
    assert layer.kv_bytes_per_token == 2 * kv_heads * head_dim * 2


def test_mamba2_state_has_the_dtype_of_each_part():
    layer = costs.mamba2(64, 8, 16, 1, 32, 4, ssm_dtype_bytes=4, conv_dtype_bytes=2)
    assert layer.state_bytes == 8 * 16 * 32 * 4 + (8 * 16 + 2 * 32) * 3 * 2


def test_moe_counts_active_experts_only():
    few = costs.moe(64, 32, 2, 128, 0, 3)
    assert few.flops_linear == 2 * 64 * 32 + 2 * 3 * 64 * 2 * 128


def test_a_model_without_states_is_refused():
    with pytest.raises(ValueError, match="state_bytes"):
        ModelCosts.of([costs.attention(64, 4, 4, 16, 2)])

"""Sums of layer costs, and the paper's numbers."""

import pytest

from sglang_hybrid.core.attention_costs import attention
from sglang_hybrid.core.costs import LayerCosts, ModelCosts
from sglang_hybrid.core.paper import paper_ssm
from sglang_hybrid.core.presets import load_model

D, N = 4096, 128
ATTENTION = attention(D, 32, 32, 128, 2)
SSM = paper_ssm(D, N)
SSM_MATRIX_BYTES = SSM.state_bytes - (2 * D + 2 * N) * 4 * 2
PAPER = load_model("paper-7b").costs


def test_attention_takes_the_papers_bytes_and_flops():
    length = 1000
    assert ATTENTION.kv_bytes_per_token == 4 * D
    assert ATTENTION.prefill_flops(length) == 8 * length * D**2 + 4 * length**2 * D


def test_one_ssm_state_equals_the_kv_of_64_tokens_of_one_attention_layer():
    assert SSM_MATRIX_BYTES == 2**20
    assert SSM_MATRIX_BYTES / ATTENTION.kv_bytes_per_token == N / 2 == 64
    assert 10 < SSM.state_bytes / ATTENTION.kv_bytes_per_token < 100


@pytest.mark.parametrize("block", [16, 32])
def test_a_checkpoint_per_block_is_many_times_the_kv_of_the_block(block):
    times = SSM_MATRIX_BYTES / (block * ATTENTION.kv_bytes_per_token)
    assert times == N / (2 * block)
    assert block != 16 or times == 4


def test_checkpoints_per_block_of_32_tokens_take_seven_and_a_half_gib():
    layers = [group for group in load_model("paper-7b").layers if group.costs.state_bytes]
    assert [group.count for group in layers] == [24]
    assert 10_240 // 32 * 24 * SSM_MATRIX_BYTES == 7.5 * 2**30


def test_flops_saved_per_byte():
    length = 2000
    per_kv_byte = ATTENTION.prefill_flops(length) / (ATTENTION.kv_bytes_per_token * length)
    assert per_kv_byte == pytest.approx(length + 2 * D) == length + 8192
    per_state_byte = SSM.prefill_flops(length) / SSM_MATRIX_BYTES
    assert per_state_byte == pytest.approx(length * (6 * D / N + 8 + 5 / N))
    assert per_state_byte == pytest.approx(200 * length, rel=1e-3)


def test_the_articles_form_of_the_ssm_term_differs_by_a_fiftieth_of_a_percent():
    length = 2000
    article = 12 * length * D**2 + 16 * length * D * N + 10 * length
    assert SSM.prefill_flops(length) / article - 1 == pytest.approx(0.0002, rel=0.05)


def test_one_state_of_the_7b_model_is_409_tokens_of_its_kv():
    assert PAPER.state_bytes == 26_787_840
    assert PAPER.kv_bytes_per_token == 65_536
    assert round(PAPER.state_bytes / PAPER.kv_bytes_per_token) == 409
    assert 24 * SSM_MATRIX_BYTES / PAPER.kv_bytes_per_token == 384


def test_checkpoints_per_block_of_16_tokens_outweigh_a_transformer():
    held = PAPER.held_bytes(10_000, checkpoints=10_000 // 16)
    assert held == pytest.approx(17.4e9, rel=1e-3)
    transformer = 32 * ATTENTION.kv_bytes_per_token * 10_000
    assert held / transformer == pytest.approx(3.3, abs=0.03)


def test_the_7b_model_as_built_today():
    model = load_model("paper-7b-gqa").costs
    assert model.kv_bytes_per_token == 16_384
    assert model.state_bytes == 102_285_312
    assert round(model.state_bytes / model.kv_bytes_per_token) == 6_243
    assert model.prefill_flops(5000) == PAPER.prefill_flops(5000)


def test_savings_are_counted_to_the_nearest_live_checkpoint_in_all_layer_kinds():
    # Subtracting one layer kind's FLOPs from another's once made deep nodes negative.
    assert PAPER.saved_flops(8000, 7000) > PAPER.saved_flops(1000, 0) > 0
    assert PAPER.saved_flops(500, 500) == 0


def test_a_model_is_the_sum_of_its_layers():
    layers = [LayerCosts(1, 2, 3, 4), LayerCosts(10, 20, 30, 40, kind="other")]
    model = ModelCosts.of(layers)
    assert model == ModelCosts(11, 22, 33, 44)
    assert model.prefill_flops(7) == sum(layer.prefill_flops(7) for layer in layers)
    assert model.held_bytes(7, 1) == sum(layer.held_bytes(7) for layer in layers)


def test_a_model_without_states_is_refused():
    with pytest.raises(ValueError, match="state_bytes"):
        ModelCosts.of([ATTENTION])

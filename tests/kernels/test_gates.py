"""The gated norm and the shared expert's gate."""

import pytest
import torch
from sglang_hybrid.kernels.gated_norm import rms_norm_gated
from sglang_hybrid.kernels.shared_expert import fused_gate_sigmoid_mul_add


@pytest.mark.parametrize("activation", ["swish", "silu", "sigmoid"])
def test_norm_comes_before_the_gate(activation):
    x, gate = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]])
    weight, bias = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    got = rms_norm_gated(x, gate, weight, bias, activation, eps=0.0)
    rms = (12.5) ** 0.5
    opened = torch.tensor(1.0).sigmoid()
    first = 0.5 * 3 / rms if activation == "sigmoid" else 0.0
    torch.testing.assert_close(got, torch.tensor([[first, opened * (8 / rms + 1)]]))


def test_a_residual_is_refused():
    x = torch.zeros(1, 2)
    with pytest.raises(NotImplementedError, match="residual"):
        rms_norm_gated(x, x, None, None, residual=x)


def test_shared_expert_is_added_behind_its_gate():
    hidden = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    routed = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    shared = torch.tensor([[1.0, 2.0], [4.0, 6.0]])
    fused_gate_sigmoid_mul_add(hidden, torch.tensor([2.0, -1.0]), shared, routed)
    torch.testing.assert_close(routed, torch.tensor([[10.5, 21.0], [32.0, 43.0]]))

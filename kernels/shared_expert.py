"""The gate of a mixture's shared expert, in plain torch."""

from torch import Tensor


def fused_gate_sigmoid_mul_add(
    hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, final_hidden_states: Tensor
) -> None:
    """Add the shared expert's output, times its gate, to the output of the routed experts.

    Args:
        hidden_states: (tokens, hidden), the mixture's input.
        gate_weight: (hidden,).
        shared_output: (tokens, hidden).
        final_hidden_states: (tokens, hidden), changed in place.
    """
    gate = (hidden_states.double() @ gate_weight.double()).sigmoid()
    final_hidden_states += gate[:, None] * shared_output.double()

"""RMS norm with an output gate, in plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def rms_norm_gated(
    x: Tensor,
    g: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str = "swish",
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """``norm(x) * weight + bias``, times ``silu(g)`` or ``sigmoid(g)``, over the last axis.

    In double precision for the same reason as the scans.

    Args:
        x, g: (..., dim).
        weight, bias: (dim,) or None.
        activation: "swish", "silu" or "sigmoid".

    Returns:
        x's shape and dtype.

    Raises:
        NotImplementedError: for a residual.
    """
    if residual is not None or prenorm:
        raise NotImplementedError("a gated norm with a residual is not supported on CPU")
    values, gate = x.double(), g.double().reshape(x.shape)
    y = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.double()
    if bias is not None:
        y = y + bias.double()
    return (y * (gate.sigmoid() if activation == "sigmoid" else silu(gate))).to(x.dtype)

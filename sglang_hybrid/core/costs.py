"""What a cached prefix costs in bytes and saves in FLOPs.

Every layer is described by four numbers: bytes of KV per token, bytes of one
checkpoint (the state of all its tokens), and the coefficients of its prefill
cost ``F(L) = linear * L + quadratic * L**2``. A model is the sum of its layers.

Conventions of all formulas:

- A multiply-add counts as two FLOPs. Norms, activations, softmax, gates and
  rotary embeddings are not counted.
- Attention is counted without the causal half, as in the paper (Pan et al.,
  "Marconi", MLSys 2025, section 3).
- Embedding and output head are not counted: a prefill needs the logits of its
  last token only, whatever its length.
- Figures are those of one tensor-parallel shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCosts:
    """Costs of one layer of one kind.

    Attributes:
        kv_bytes_per_token: bytes that one token's KV occupies.
        state_bytes: bytes of one checkpoint, convolution window included.
        flops_linear: FLOPs per token.
        flops_quadratic: FLOPs per squared token (attention without a window only).
        kind: what kind of layer it is, to be shown to people.
    """

    kv_bytes_per_token: float = 0.0
    state_bytes: float = 0.0
    flops_linear: float = 0.0
    flops_quadratic: float = 0.0
    kind: str = ""

    def prefill_flops(self, tokens: int) -> float:
        """FLOPs to prefill ``tokens`` tokens from nothing."""
        return (self.flops_linear + self.flops_quadratic * tokens) * tokens

    def held_bytes(self, tokens: int) -> float:
        """Bytes that a cached prefix of ``tokens`` tokens with one checkpoint holds."""
        return self.kv_bytes_per_token * tokens + self.state_bytes


@dataclass(frozen=True)
class ModelCosts:
    """Costs of a whole model, or of one tensor-parallel shard of it.

    Attributes: as those of `LayerCosts`, summed over the layers.
    """

    kv_bytes_per_token: float
    state_bytes: float
    flops_linear: float
    flops_quadratic: float

    def __post_init__(self) -> None:
        if self.kv_bytes_per_token < 0 or self.state_bytes <= 0:
            raise ValueError(
                f"a hybrid model needs state_bytes > 0 and kv_bytes_per_token >= 0, got "
                f"{self.state_bytes=} {self.kv_bytes_per_token=}"
            )
        if self.flops_linear <= 0 or self.flops_quadratic < 0:
            raise ValueError(
                f"prefill must cost something: {self.flops_linear=} {self.flops_quadratic=}"
            )

    @classmethod
    def of(cls, layers: Iterable[LayerCosts]) -> ModelCosts:
        """Sum of ``layers``."""
        kv = state = linear = quadratic = 0.0
        for layer in layers:
            kv += layer.kv_bytes_per_token
            state += layer.state_bytes
            linear += layer.flops_linear
            quadratic += layer.flops_quadratic
        return cls(kv, state, linear, quadratic)

    def prefill_flops(self, tokens: int) -> float:
        """FLOPs to prefill ``tokens`` tokens from nothing."""
        return (self.flops_linear + self.flops_quadratic * tokens) * tokens

    def saved_flops(self, depth: int, ancestor_depth: int) -> float:
        """FLOPs that a hit at ``depth`` saves over a hit at ``ancestor_depth`` (tokens)."""
        return self.prefill_flops(depth) - self.prefill_flops(ancestor_depth)

    def held_bytes(self, tokens: int, checkpoints: int) -> float:
        """Bytes of a cached sequence of ``tokens`` tokens with ``checkpoints`` states."""
        return self.kv_bytes_per_token * tokens + self.state_bytes * checkpoints

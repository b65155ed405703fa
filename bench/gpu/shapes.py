"""Layer shapes of hybrid models and what the checkpoint kernels must move for them.

Fields are those of the models' ``config.json`` (see `sglang_hybrid.core.preset_configs`), on one
GPU. States are float32 and activations bfloat16, SGLang's defaults.
"""

from dataclasses import dataclass

HISTORY = 3  # convolution width 4
STATE_BYTES = 4
ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Mamba2Shape:
    """A Mamba-2 layer; `chunk` is the grid of its scan in tokens."""

    heads: int
    head_dim: int
    groups: int
    d_state: int
    chunk: int

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.head_dim, self.d_state

    @property
    def conv_dim(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.d_state

    @property
    def boundary_bytes(self) -> int:
        """Bytes per element of the scan's chunk states: it returns them in the state's type."""
        return STATE_BYTES

    @property
    def token_bytes(self) -> int:
        """Inputs of the recurrence per token: x, B and dt."""
        channels = self.heads * self.head_dim + self.groups * self.d_state
        return ACTIVATION_BYTES * (channels + self.heads)

    @property
    def token_flops(self) -> int:
        """Per state element a multiply-add; weights and decay are per head or per channel."""
        return 2 * self.heads * self.head_dim * self.d_state


@dataclass(frozen=True)
class DeltaShape:
    """A gated delta-net layer, or with `per_channel` decay a Kimi delta attention layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    per_channel: bool
    chunk: int = 64

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.value_dim, self.key_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def boundary_bytes(self) -> int:
        """Bytes per element of the chunk kernel's ``h``: it has the activations' type."""
        return ACTIVATION_BYTES

    @property
    def token_bytes(self) -> int:
        """Inputs of the recurrence per token: k and v, beta and g or KDA's raw gate."""
        keys = self.key_heads * self.key_dim
        values = self.value_heads * self.value_dim
        if self.per_channel:
            return ACTIVATION_BYTES * (keys + values + keys + self.value_heads)
        return ACTIVATION_BYTES * (keys + values) + 4 * 2 * self.value_heads

    @property
    def token_flops(self) -> int:
        """Per state element: decay (1), prediction for k (2), correction (2)."""
        return 5 * self.value_heads * self.value_dim * self.key_dim


Shape = Mamba2Shape | DeltaShape


@dataclass(frozen=True)
class Model:
    layers: int  # with a state
    shape: Shape


MODELS = {
    "Nemotron-H-8B": Model(24, Mamba2Shape(128, 64, groups=8, d_state=128, chunk=128)),
    "Granite-4-H-small": Model(36, Mamba2Shape(128, 64, groups=1, d_state=128, chunk=256)),
    "Qwen3-Next-80B": Model(36, DeltaShape(16, 32, 128, 128, per_channel=False)),
    "Kimi-Linear-48B": Model(20, DeltaShape(32, 32, 128, 128, per_channel=True)),
}


def state_elements(shape: Shape) -> int:
    a, b, c = shape.state_shape
    return a * b * c


def advance_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of one checkpoint `tokens` behind a boundary: state in and out, inputs once."""
    return state_elements(shape) * (shape.boundary_bytes + 4) + tokens * shape.token_bytes


def advance_flops(shape: Shape, tokens: int) -> int:
    return tokens * shape.token_flops


def scatter_bytes(shape: Shape) -> int:
    """Bytes of one checkpoint: float32 state in, state out, window in and out."""
    return (
        state_elements(shape) * (4 + STATE_BYTES) + 2 * shape.conv_dim * HISTORY * ACTIVATION_BYTES
    )

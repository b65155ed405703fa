"""The small hybrid model: written from a seed, the same bytes on every machine."""

import argparse
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from sglang_hybrid.model.tokenizer import (
    BYTES,
    PAD_ID,
    TURN_END_ID,
    VOCAB_SIZE,
    write_tokenizer,
)

CONTEXT_LENGTH = 131072
LAYER_TYPES = ("mamba", "attention", "mamba", "mamba")
HIDDEN = 128
HEADS, KV_HEADS = 4, 2
MAMBA_HEADS, MAMBA_HEAD_DIM, D_STATE, D_CONV, GROUPS = 16, 16, 32, 4, 1
MAMBA_CHUNK = 64
MLP = 128
LN2 = math.log(2)
# log2 of the tokens after which each Mamba head has forgotten by a factor e.
HORIZONS_LOG2 = tuple(5 + 5 * head / (MAMBA_HEADS - 1) for head in range(MAMBA_HEADS))
# A larger embedding lowers the noise and the weight of the states alike; here both are in balance.
EMBEDDING_STD = 4.0

# One channel of the residual stream has the same value at every token. Through it the output head
# has a bias per token.
CONSTANT = 0
CONSTANT_VALUE = 8.0
LOGIT_STD = 8.0
SAMPLED_BIAS = -19.0  # brings the largest logit near zero, where bfloat16 is finest
TURN_END_BIAS = -27.0
NEVER_BIAS = -83.0

# The text that it samples: printable ASCII without '<', so that no sampled text can spell a
# special token.
SAMPLED_BYTES = tuple(byte for byte in range(0x20, 0x7F) if byte != ord("<"))


def config() -> dict:
    """The model's ``config.json``."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "shared_intermediate_size": MLP,
        "num_hidden_layers": len(LAYER_TYPES),
        "layer_types": list(LAYER_TYPES),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT_LENGTH,
        "position_embedding_type": "nope",
        "attention_bias": False,
        "mamba_n_heads": MAMBA_HEADS,
        "mamba_d_head": MAMBA_HEAD_DIM,
        "mamba_d_state": D_STATE,
        "mamba_d_conv": D_CONV,
        "mamba_n_groups": GROUPS,
        "mamba_expand": MAMBA_HEADS * MAMBA_HEAD_DIM // HIDDEN,
        "mamba_chunk_size": MAMBA_CHUNK,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": (HIDDEN // HEADS) ** -0.5,
        "logits_scaling": 1.0,
        "tie_word_embeddings": False,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": PAD_ID,
        "bos_token_id": None,
    }


class Draws:
    """Random matrices from integer arithmetic alone.

    Library normals go through log and exp, whose last bit differs between platforms; a sum of
    uniform integers does not.
    """

    def __init__(self, seed: int):
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape: int, std: float) -> np.ndarray:
        """Near-normal numbers of standard deviation `std` (a sum of 12 uniforms)."""
        dice = self._rng.integers(0, 1 << 16, size=(12, *shape), dtype=np.int64)
        centred = dice.sum(axis=0) - 6 * ((1 << 16) - 1)
        return centred * (std / (1 << 16))


def to_bfloat16(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(torch.bfloat16)


def norm_without_constant() -> np.ndarray:
    """Norm weight of a layer's input: hides the constant channel from the layer."""
    weight = np.ones(HIDDEN)
    weight[CONSTANT] = 0
    return weight


def residual_output(draws: Draws, inputs: int, std: float) -> np.ndarray:
    """A projection back into the residual stream, (HIDDEN, inputs): it leaves the constant channel
    alone."""
    weight = draws.normal(HIDDEN, inputs, std=std)
    weight[CONSTANT] = 0
    return weight


def add_embeddings(draws: Draws, tensors: dict, embedding: str, head: str) -> None:
    """Embedding and output head; the head keeps sampling within `SAMPLED_BYTES`."""
    embed = draws.normal(VOCAB_SIZE, HIDDEN, std=EMBEDDING_STD)
    embed[:, CONSTANT] = CONSTANT_VALUE
    tensors[embedding] = embed
    logits = draws.normal(VOCAB_SIZE, HIDDEN, std=LOGIT_STD * HIDDEN**-0.5)
    logits[:, CONSTANT] = NEVER_BIAS
    logits[list(SAMPLED_BYTES), CONSTANT] = SAMPLED_BIAS
    logits[TURN_END_ID, CONSTANT] = TURN_END_BIAS
    tensors[head] = logits


def add_mamba(draws: Draws, tensors: dict, name: str) -> None:
    """A Mamba-2 mixer whose heads remember for 2^5 to 2^10 tokens.

    Two things let a single token matter long after it was read. The convolution's output is small,
    where SiLU is almost linear, so that what enters the state has no mean that would pile up and
    drown the rest. And step size and decay are set together, so that heads of long and of short
    memory are equally loud; the step size follows the input strongly, so that a changed token also
    changes what later ones write. There is no skip connection (D = 0): the output is the state's.
    """
    inner = MAMBA_HEADS * MAMBA_HEAD_DIM
    conv_dim = inner + 2 * GROUPS * D_STATE
    in_proj = draws.normal(inner + conv_dim + MAMBA_HEADS, HIDDEN, std=HIDDEN**-0.5)
    in_proj[-MAMBA_HEADS:] *= 2  # the rows of dt
    tensors[name + "in_proj.weight"] = in_proj
    tensors[name + "conv1d.weight"] = draws.normal(conv_dim, 1, D_CONV, std=0.15)
    tensors[name + "conv1d.bias"] = np.zeros(conv_dim)
    tensors[name + "A_log"] = np.array([-0.5 * h * LN2 for h in HORIZONS_LOG2])
    tensors[name + "dt_bias"] = np.array([_inverse_softplus(2 ** (-h / 2)) for h in HORIZONS_LOG2])
    tensors[name + "D"] = np.zeros(MAMBA_HEADS)
    tensors[name + "norm.weight"] = np.ones(inner)
    tensors[name + "out_proj.weight"] = residual_output(draws, inner, std=4 * inner**-0.5)


def _inverse_softplus(y: float) -> float:
    # math's exp and log may differ by one last bit between platforms: far below the rounding to
    # bfloat16 that follows, unless a value sat on a rounding boundary, and none does.
    return math.log(math.expm1(y))


def add_attention(draws: Draws, tensors: dict, name: str) -> None:
    """An attention mixer, quieter than the Mamba ones."""
    head_dim = HIDDEN // HEADS
    std = HIDDEN**-0.5
    tensors[name + "q_proj.weight"] = draws.normal(HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "k_proj.weight"] = draws.normal(KV_HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "v_proj.weight"] = draws.normal(KV_HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "o_proj.weight"] = residual_output(draws, HEADS * head_dim, std=std)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint, bfloat16, by their name in it."""
    draws = Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    add_embeddings(draws, tensors, "model.embed_tokens.weight", "lm_head.weight")
    for i, kind in enumerate(LAYER_TYPES):
        name = f"model.layers.{i}."
        tensors[name + "input_layernorm.weight"] = norm_without_constant()
        tensors[name + "post_attention_layernorm.weight"] = norm_without_constant()
        if kind == "mamba":
            add_mamba(draws, tensors, name + "mamba.")
        else:
            add_attention(draws, tensors, name + "self_attn.")
        tensors[name + "shared_mlp.input_linear.weight"] = draws.normal(
            2 * MLP, HIDDEN, std=HIDDEN**-0.5
        )
        tensors[name + "shared_mlp.output_linear.weight"] = residual_output(
            draws, MLP, std=MLP**-0.5
        )
    tensors["model.norm.weight"] = np.ones(HIDDEN)
    return {name: to_bfloat16(values) for name, values in tensors.items()}


def make_small_model(path: str | Path, seed: int = 0) -> Path:
    """Write the model and its tokenizer into folder `path`.

    Returns:
        The folder.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, CONTEXT_LENGTH)
    (folder / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    save_file(weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights_sha256(path: str | Path) -> str:
    """Digest of a checkpoint's tensors: names, dtypes, shapes and bytes, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(Path(path) / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``hybrid-marconi make-model``."""
    parser.add_argument("path", metavar="PATH", help="folder to write the model into")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default 0)")


def run(args: argparse.Namespace) -> int:
    """Write the model; returns the exit status."""
    folder = make_small_model(args.path, args.seed)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote {folder} ({size / 1e6:.1f} MB, {len(LAYER_TYPES)} layers, {BYTES} byte tokens)")
    return 0

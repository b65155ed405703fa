"""The small hybrid model: written from a seed, the same bytes on every machine."""

import argparse
import hashlib
import json
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


class _Draws:
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


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(torch.bfloat16)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint, bfloat16, by their name in it."""
    draws = _Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    residual = np.ones((HIDDEN, 1))
    residual[0] = 0  # no layer writes the constant channel

    embed = draws.normal(VOCAB_SIZE, HIDDEN, std=1.0)
    embed[:, 0] = 8.0
    tensors["model.embed_tokens.weight"] = embed
    for i, kind in enumerate(LAYER_TYPES):
        name = f"model.layers.{i}."
        hide_constant = np.ones(HIDDEN)
        hide_constant[0] = 0
        tensors[name + "input_layernorm.weight"] = hide_constant
        tensors[name + "post_attention_layernorm.weight"] = hide_constant
        if kind == "mamba":
            _mamba(draws, tensors, name + "mamba.", residual)
        else:
            _attention(draws, tensors, name + "self_attn.", residual)
        std = HIDDEN**-0.5
        tensors[name + "shared_mlp.input_linear.weight"] = draws.normal(2 * MLP, HIDDEN, std=std)
        tensors[name + "shared_mlp.output_linear.weight"] = (
            draws.normal(HIDDEN, MLP, std=2 * MLP**-0.5) * residual
        )
    tensors["model.norm.weight"] = np.ones(HIDDEN)
    head = draws.normal(VOCAB_SIZE, HIDDEN, std=8 * HIDDEN**-0.5)
    head[:, 0] = -64.0
    head[list(SAMPLED_BYTES), 0] = 0.0
    head[TURN_END_ID, 0] = -8.0
    tensors["lm_head.weight"] = head
    return {name: _tensor(values) for name, values in tensors.items()}


def _mamba(draws: _Draws, tensors: dict, name: str, residual: np.ndarray) -> None:
    inner = MAMBA_HEADS * MAMBA_HEAD_DIM
    conv_dim = inner + 2 * GROUPS * D_STATE
    tensors[name + "in_proj.weight"] = draws.normal(
        inner + conv_dim + MAMBA_HEADS, HIDDEN, std=HIDDEN**-0.5
    )
    tensors[name + "conv1d.weight"] = draws.normal(conv_dim, 1, D_CONV, std=0.7)
    tensors[name + "conv1d.bias"] = np.zeros(conv_dim)
    # Memories of 4 to 2048 tokens: head h forgets by a factor e in about 1 / (A dt) tokens.
    horizons = 2.0 ** np.linspace(2, 11, MAMBA_HEADS)
    tensors[name + "A_log"] = np.log(1.0 / horizons)
    tensors[name + "dt_bias"] = np.full(MAMBA_HEADS, 0.54)  # softplus: 1
    tensors[name + "D"] = np.full(MAMBA_HEADS, 0.25)
    tensors[name + "norm.weight"] = np.ones(inner)
    tensors[name + "out_proj.weight"] = draws.normal(HIDDEN, inner, std=2 * inner**-0.5) * residual


def _attention(draws: _Draws, tensors: dict, name: str, residual: np.ndarray) -> None:
    head_dim = HIDDEN // HEADS
    std = HIDDEN**-0.5
    tensors[name + "q_proj.weight"] = draws.normal(HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "k_proj.weight"] = draws.normal(KV_HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "v_proj.weight"] = draws.normal(KV_HEADS * head_dim, HIDDEN, std=std)
    tensors[name + "o_proj.weight"] = draws.normal(HIDDEN, HEADS * head_dim, std=std) * residual


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

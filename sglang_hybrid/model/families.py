"""Tiny Falcon-H1 and Nemotron-H checkpoints, for tests of a server with these families.

They share the tokenizer and the layer sizes of the small model; their weights are only random, with
states that matter.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from sglang_hybrid.model import make_model as small
from sglang_hybrid.model.tokenizer import PAD_ID, TURN_END_ID, VOCAB_SIZE, write_tokenizer

FALCON_LAYERS = 3
NEMOTRON_LAYERS = ("mamba", "attention", "mlp", "mamba")


def write_checkpoint(folder: Path, config: dict, tensors: dict[str, np.ndarray]) -> Path:
    """Write tokenizer, configuration and weights (rounded to bfloat16); returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, small.CONTEXT_LENGTH)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    rounded = {name: small.to_bfloat16(values) for name, values in tensors.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def common_config() -> dict:
    """Fields of ``config.json`` that the families share."""
    return {
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": small.HIDDEN,
        "intermediate_size": small.MLP,
        "num_attention_heads": small.HEADS,
        "num_key_value_heads": small.KV_HEADS,
        "head_dim": small.HIDDEN // small.HEADS,
        "max_position_embeddings": small.CONTEXT_LENGTH,
        "tie_word_embeddings": False,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": PAD_ID,
        "bos_token_id": None,
    }


def make_falcon_h1(path: str | Path, seed: int = 0) -> Path:
    """Write a Falcon-H1 model (Mamba-2 and attention side by side in every layer)."""
    config = {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        **common_config(),
        "num_hidden_layers": FALCON_LAYERS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e11,
        "mamba_d_ssm": small.MAMBA_HEADS * small.MAMBA_HEAD_DIM,
        "mamba_n_heads": small.MAMBA_HEADS,
        "mamba_d_head": small.MAMBA_HEAD_DIM,
        "mamba_n_groups": small.GROUPS,
        "mamba_d_state": small.D_STATE,
        "mamba_d_conv": small.D_CONV,
        "mamba_expand": 2,
        "mamba_chunk_size": small.MAMBA_CHUNK,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_norm_before_gate": False,
        "mamba_rms_norm": True,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }
    draws = small.Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    small.add_embeddings(draws, tensors, "model.embed_tokens.weight", "lm_head.weight")
    for i in range(FALCON_LAYERS):
        name = f"model.layers.{i}."
        tensors[name + "input_layernorm.weight"] = small.norm_without_constant()
        tensors[name + "pre_ff_layernorm.weight"] = small.norm_without_constant()
        small.add_mamba(draws, tensors, name + "mamba.")
        small.add_attention(draws, tensors, name + "self_attn.")
        std = small.HIDDEN**-0.5
        for part in ("gate_proj", "up_proj"):
            tensors[f"{name}feed_forward.{part}.weight"] = draws.normal(
                small.MLP, small.HIDDEN, std=std
            )
        tensors[name + "feed_forward.down_proj.weight"] = small.residual_output(
            draws, small.MLP, std=small.MLP**-0.5
        )
    tensors["model.final_layernorm.weight"] = np.ones(small.HIDDEN)
    return write_checkpoint(Path(path), config, tensors)


def make_nemotron_h(path: str | Path, seed: int = 0) -> Path:
    """Write a Nemotron-H model (every layer is a Mamba-2, attention or MLP layer alone).

    SGLang 0.5.23 reads the layer kinds from ``layers_block_type`` in its own names ("mamba", not
    the hub's "linear_attention"), and takes the number of groups from ``mamba_n_groups`` for the
    weights but from ``n_groups`` for the state pool: both must be there and equal.
    """
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        **common_config(),
        "layers_block_type": list(NEMOTRON_LAYERS),
        "layer_norm_epsilon": 1e-5,
        "mlp_hidden_act": "relu2",
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "ssm_state_size": small.D_STATE,
        "mamba_num_heads": small.MAMBA_HEADS,
        "mamba_head_dim": small.MAMBA_HEAD_DIM,
        "mamba_n_groups": small.GROUPS,
        "n_groups": small.GROUPS,
        "mamba_d_conv": small.D_CONV,
        "conv_kernel": small.D_CONV,
        "mamba_expand": 2,
        "expand": 2,
        "mamba_chunk_size": small.MAMBA_CHUNK,
        "chunk_size": small.MAMBA_CHUNK,
        "use_conv_bias": True,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_hidden_act": "silu",
        "residual_in_fp32": False,
    }
    draws = small.Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    small.add_embeddings(draws, tensors, "backbone.embeddings.weight", "lm_head.weight")
    for i, kind in enumerate(NEMOTRON_LAYERS):
        name = f"backbone.layers.{i}."
        tensors[name + "norm.weight"] = small.norm_without_constant()
        if kind == "mamba":
            small.add_mamba(draws, tensors, name + "mixer.")
        elif kind == "attention":
            small.add_attention(draws, tensors, name + "mixer.")
        else:
            tensors[name + "mixer.up_proj.weight"] = draws.normal(
                small.MLP, small.HIDDEN, std=small.HIDDEN**-0.5
            )
            tensors[name + "mixer.down_proj.weight"] = small.residual_output(
                draws, small.MLP, std=small.MLP**-0.5
            )
    tensors["backbone.norm_f.weight"] = np.ones(small.HIDDEN)
    return write_checkpoint(Path(path), config, tensors)

"""A tiny Qwen3-Next checkpoint: gated delta-net and attention, every feed-forward part a MoE."""

import math
from pathlib import Path

import numpy as np

from sglang_hybrid.model import make_model as small
from sglang_hybrid.model.families import common_config, write_checkpoint

LAYERS, ATTENTION_EVERY = 4, 3  # delta-net, delta-net, attention, delta-net
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 4, 8, 32, 32
# All experts take part in every token: with a choice, rounding could change which.
EXPERTS = 2
# log2 of the tokens after which each value head has forgotten by a factor e.
HORIZONS_LOG2 = tuple(5 + 5 * head / (VALUE_HEADS - 1) for head in range(VALUE_HEADS))
# A write erases what its key's direction held: a large step size would leave nothing of a token
# once KEY_DIM others have been read. Through the constant channel the step size has a bias.
STEP_BIAS = -1.5


def make_qwen3_next(path: str | Path, seed: int = 0) -> Path:
    """Write the model; returns the folder."""
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        **common_config(),
        "num_hidden_layers": LAYERS,
        "full_attention_interval": ATTENTION_EVERY,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "attention_bias": False,
        "linear_conv_kernel_dim": small.D_CONV,
        "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS,
        "norm_topk_prob": True,
        "moe_intermediate_size": small.MLP // 2,
        "shared_expert_intermediate_size": small.MLP // 2,
    }
    draws = small.Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    small.add_embeddings(draws, tensors, "model.embed_tokens.weight", "lm_head.weight")
    for i in range(LAYERS):
        name = f"model.layers.{i}."
        tensors[name + "post_attention_layernorm.weight"] = small.norm_without_constant() - 1
        if (i + 1) % ATTENTION_EVERY == 0:
            tensors[name + "input_layernorm.weight"] = small.norm_without_constant() - 1
            _add_attention(draws, tensors, name + "self_attn.")
        else:
            tensors[name + "input_layernorm.weight"] = np.zeros(small.HIDDEN)
            _add_delta_net(draws, tensors, name + "linear_attn.")
        _add_experts(draws, tensors, name + "mlp.")
    tensors["model.norm.weight"] = np.zeros(small.HIDDEN)
    return write_checkpoint(Path(path), config, tensors)


def _add_delta_net(draws: small.Draws, tensors: dict, name: str) -> None:
    """A mixer whose heads remember for 2^5 to 2^10 tokens; see `make_model.add_mamba`.

    The norms of this family add one to their weights, but not the gated one.
    """
    keys, values = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
    std = small.HIDDEN**-0.5
    qkvz = draws.normal(2 * keys + 2 * values, small.HIDDEN, std=std)
    qkvz[:, small.CONSTANT] = 0
    tensors[name + "in_proj_qkvz.weight"] = qkvz
    ba = draws.normal(KEY_HEADS, 2, VALUE_HEADS // KEY_HEADS, small.HIDDEN, std=std)
    ba[..., small.CONSTANT] = 0
    ba[:, 0, :, small.CONSTANT] = STEP_BIAS
    tensors[name + "in_proj_ba.weight"] = ba.reshape(2 * VALUE_HEADS, small.HIDDEN)
    tensors[name + "conv1d.weight"] = draws.normal(2 * keys + values, 1, small.D_CONV, std=0.15)
    tensors[name + "A_log"] = np.array([-h * small.LN2 for h in HORIZONS_LOG2])
    tensors[name + "dt_bias"] = np.full(VALUE_HEADS, math.log(math.e - 1))  # softplus of it is one
    tensors[name + "norm.weight"] = np.ones(VALUE_DIM)
    tensors[name + "out_proj.weight"] = small.residual_output(draws, values, std=4 * values**-0.5)


def _add_attention(draws: small.Draws, tensors: dict, name: str) -> None:
    """As `make_model.add_attention`, with norms of queries and keys and an output gate."""
    small.add_attention(draws, tensors, name)
    head_dim = small.HIDDEN // small.HEADS
    # Each head's query is followed by its gate.
    tensors[name + "q_proj.weight"] = draws.normal(
        small.HEADS * 2 * head_dim, small.HIDDEN, std=small.HIDDEN**-0.5
    )
    tensors[name + "q_norm.weight"] = np.zeros(head_dim)
    tensors[name + "k_norm.weight"] = np.zeros(head_dim)


def _add_experts(draws: small.Draws, tensors: dict, name: str) -> None:
    std = small.HIDDEN**-0.5
    inner = small.MLP // 2
    tensors[name + "gate.weight"] = draws.normal(EXPERTS, small.HIDDEN, std=std)
    tensors[name + "shared_expert_gate.weight"] = draws.normal(1, small.HIDDEN, std=std)
    for expert in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_expert"):
        for part in ("gate_proj", "up_proj"):
            tensors[f"{name}{expert}.{part}.weight"] = draws.normal(inner, small.HIDDEN, std=std)
        tensors[f"{name}{expert}.down_proj.weight"] = small.residual_output(
            draws, inner, std=inner**-0.5
        )

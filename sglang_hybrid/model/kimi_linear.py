"""A tiny Kimi-Linear checkpoint: Kimi delta attention and MLA, dense and mixture layers."""

import math
from pathlib import Path

import numpy as np

from sglang_hybrid.model import make_model as small
from sglang_hybrid.model.families import common_config, write_checkpoint
from sglang_hybrid.model.qwen3_next import STEP_BIAS

LAYERS = ("kda", "kda", "mla", "kda")
FIRST_MIXTURE = 1
KDA_HEADS, KDA_HEAD_DIM = 8, 32
LATENT, NOPE, ROPE, VALUE = 48, 32, 16, 32
# All experts take part in every token: with a choice, rounding could change which.
EXPERTS = 2
HORIZONS_LOG2 = tuple(5 + 5 * head / (KDA_HEADS - 1) for head in range(KDA_HEADS))


def make_kimi_linear(path: str | Path, seed: int = 0) -> Path:
    """Write the model; returns the folder."""
    config = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        **common_config(),
        # SGLang builds one of its projections in this dtype, whatever it serves in.
        "dtype": "float32",
        "num_key_value_heads": small.HEADS,
        "head_dim": NOPE + ROPE,
        "num_hidden_layers": len(LAYERS),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "linear_attn_config": {
            "kda_layers": [i + 1 for i, kind in enumerate(LAYERS) if kind == "kda"],
            "full_attn_layers": [i + 1 for i, kind in enumerate(LAYERS) if kind == "mla"],
            "num_heads": KDA_HEADS,
            "head_dim": KDA_HEAD_DIM,
            "short_conv_kernel_size": small.D_CONV,
        },
        "q_lora_rank": None,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "mla_use_nope": True,
        "num_experts": EXPERTS,
        "num_experts_per_token": EXPERTS,
        "num_shared_experts": 1,
        "moe_intermediate_size": small.MLP // 2,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "first_k_dense_replace": FIRST_MIXTURE,
        "moe_layer_freq": 1,
        "num_expert_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    }
    draws = small.Draws(seed)
    tensors: dict[str, np.ndarray] = {}
    small.add_embeddings(draws, tensors, "model.embed_tokens.weight", "lm_head.weight")
    for i, kind in enumerate(LAYERS):
        name = f"model.layers.{i}."
        tensors[name + "post_attention_layernorm.weight"] = small.norm_without_constant()
        if kind == "kda":
            tensors[name + "input_layernorm.weight"] = np.ones(small.HIDDEN)
            _add_kda(draws, tensors, name + "self_attn.")
        else:
            tensors[name + "input_layernorm.weight"] = small.norm_without_constant()
            _add_mla(draws, tensors, name + "self_attn.")
        if i < FIRST_MIXTURE:
            parts = ("gate_proj", "down_proj", "up_proj")
            _add_mlp(draws, tensors, name + "mlp.", parts, small.MLP)
        else:
            _add_mixture(draws, tensors, name + "block_sparse_moe.")
    tensors["model.norm.weight"] = np.ones(small.HIDDEN)
    return write_checkpoint(Path(path), config, tensors)


def _from_hidden(draws: small.Draws, outputs: int, bias: float = 0.0) -> np.ndarray:
    """A projection of a layer's input; only through `bias` it sees the constant channel."""
    weight = draws.normal(outputs, small.HIDDEN, std=small.HIDDEN**-0.5)
    weight[:, small.CONSTANT] = bias
    return weight


def _add_kda(draws: small.Draws, tensors: dict, name: str) -> None:
    """A mixer whose heads remember for 2^5 to 2^10 tokens; see `qwen3_next`."""
    inner = KDA_HEADS * KDA_HEAD_DIM
    for part in "qkv":
        tensors[f"{name}{part}_proj.weight"] = _from_hidden(draws, inner)
        tensors[f"{name}{part}_conv1d.weight"] = draws.normal(inner, 1, small.D_CONV, std=0.15)
    tensors[name + "b_proj.weight"] = _from_hidden(draws, KDA_HEADS, STEP_BIAS)
    for part in "fg":
        tensors[f"{name}{part}_a_proj.weight"] = _from_hidden(draws, KDA_HEAD_DIM)
        tensors[f"{name}{part}_b_proj.weight"] = draws.normal(
            inner, KDA_HEAD_DIM, std=KDA_HEAD_DIM**-0.5
        )
    rates = np.array([-h * small.LN2 for h in HORIZONS_LOG2])
    tensors[name + "A_log"] = rates.reshape(1, 1, KDA_HEADS, 1)
    tensors[name + "dt_bias"] = np.full(inner, math.log(math.e - 1))  # softplus of it is one
    tensors[name + "o_norm.weight"] = np.ones(KDA_HEAD_DIM)
    tensors[name + "o_proj.weight"] = small.residual_output(draws, inner, std=4 * inner**-0.5)


def _add_mla(draws: small.Draws, tensors: dict, name: str) -> None:
    heads = small.HEADS
    tensors[name + "q_proj.weight"] = _from_hidden(draws, heads * (NOPE + ROPE))
    tensors[name + "kv_a_proj_with_mqa.weight"] = _from_hidden(draws, LATENT + ROPE)
    tensors[name + "kv_a_layernorm.weight"] = np.ones(LATENT)
    tensors[name + "kv_b_proj.weight"] = draws.normal(
        heads * (NOPE + VALUE), LATENT, std=LATENT**-0.5
    )
    tensors[name + "o_proj.weight"] = small.residual_output(
        draws, heads * VALUE, std=(heads * VALUE) ** -0.5
    )


def _add_mixture(draws: small.Draws, tensors: dict, name: str) -> None:
    inner = small.MLP // 2
    tensors[name + "gate.weight"] = _from_hidden(draws, EXPERTS)
    tensors[name + "gate.e_score_correction_bias"] = np.zeros(EXPERTS)
    for expert in range(EXPERTS):
        _add_mlp(draws, tensors, f"{name}experts.{expert}.", ("w1", "w2", "w3"), inner)
    parts = ("gate_proj", "down_proj", "up_proj")
    _add_mlp(draws, tensors, name + "shared_experts.", parts, inner)


def _add_mlp(
    draws: small.Draws, tensors: dict, name: str, parts: tuple[str, str, str], inner: int
) -> None:
    gate, down, up = parts
    tensors[f"{name}{gate}.weight"] = _from_hidden(draws, inner)
    tensors[f"{name}{up}.weight"] = _from_hidden(draws, inner)
    tensors[f"{name}{down}.weight"] = small.residual_output(draws, inner, std=inner**-0.5)

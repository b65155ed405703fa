"""Configurations of well-known hybrid models, as far as costs depend on them.

A preset is the fields of a model's ``config.json`` that matter for its costs; it is read
as the file would be. The fields were taken from copies and tests of other public projects
that quote these files, and compared with each other, with the defaults of transformers
5.19 and with the parameter counts that the models' authors publish (the tests do the last
again).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model known by name.

    Attributes:
        description: one line on what it is.
        config: the fields of its configuration that its costs depend on.
        notes: what a user of its figures should know.
    """

    description: str
    config: dict[str, Any]
    notes: tuple[str, ...] = ()


_UNSERVED = "costs and replay only: SGLang 0.5.23 has no implementation of this model"
_PAPER_TYPES = "FP16 as in the paper: types that are asked for have no effect"

_PAPER_7B = {
    "model_type": "marconi_paper",
    "hidden_size": 4096,
    "state_dim": 128,
    "attention_layers": 4,
    "ssm_layers": 24,
    "mlp_layers": 28,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "ssm_bytes_per_state_dim": 2,
}

_ATTENTION_EVERY_TENTH = (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4

PRESETS: dict[str, Preset] = {
    "paper-7b": Preset(
        "the paper's 7B hybrid: 4 attention, 24 SSM and 28 MLP layers, D=4096, N=128",
        _PAPER_7B,
        (_PAPER_TYPES,),
    ),
    "paper-7b-gqa": Preset(
        "paper-7b as models are built today: a quarter of the KV, FP32 states of expansion 2",
        {**_PAPER_7B, "num_key_value_heads": 8, "ssm_bytes_per_state_dim": 8},
        ("KV in FP16, states in FP32: types that are asked for have no effect",),
    ),
    "jamba-1.5-mini": Preset(
        "AI21 Jamba 1.5 Mini: Mamba-1, 1 attention layer in 8, 16 experts in every second layer",
        {
            "model_type": "jamba",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 256,
        },
        (_UNSERVED,),
    ),
    "zamba2-7b": Preset(
        "Zyphra Zamba2 7B: Mamba-2 in 81 layers, 13 of them after a shared attention block",
        {
            "model_type": "zamba2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "num_hidden_layers": 81,
            "layers_block_type": ["mamba"] * 6
            + ["hybrid"]
            + ["mamba"] * 4
            + ["hybrid"]
            + (["mamba"] * 5 + ["hybrid"]) * 11
            + ["mamba"] * 3,
            "adapter_rank": 128,
            "use_shared_attention_adapter": False,
            "n_mamba_heads": 112,
            "mamba_ngroups": 2,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        (_UNSERVED,),
    ),
    "hymba-1.5b": Preset(
        "NVIDIA Hymba 1.5B: attention (3 layers global, 29 windowed) beside Mamba-1 in 32 layers",
        {
            "model_type": "hymba",
            "hidden_size": 1600,
            "intermediate_size": 5504,
            "num_hidden_layers": 32,
            "num_attention_heads": 25,
            "num_key_value_heads": 5,
            "v_head_dim": 128,
            "sliding_window": 1024,
            "global_attn_idx": [0, 15, 31],
            "kv_reuse_group": [[i, i + 1] for i in range(1, 15, 2)]
            + [[16, 17, 18]]
            + [[i, i + 1] for i in range(19, 31, 2)],
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 100,
        },
        (_UNSERVED, "the 128 learnt tokens before every prompt are not counted"),
    ),
    "nemotron-h-8b": Preset(
        "NVIDIA Nemotron-H 8B: 24 Mamba-2, 4 attention and 24 MLP layers",
        {
            "model_type": "nemotron_h",
            "hidden_size": 4096,
            "intermediate_size": 21504,
            "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-",
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attention_head_dim": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
        },
    ),
    "falcon-h1-7b": Preset(
        "TII Falcon-H1 7B: attention beside Mamba-2 in each of 44 layers",
        {
            "model_type": "falcon_h1",
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 44,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_d_ssm": 3072,
            "mamba_n_heads": 24,
            "mamba_d_head": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "granite-4.0-h-small": Preset(
        "IBM Granite 4.0 H Small (32B, 9B active): 36 Mamba-2 and 4 attention layers, experts",
        {
            "model_type": "granitemoehybrid",
            "hidden_size": 4096,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 40,
            "layer_types": _ATTENTION_EVERY_TENTH,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "granite-4.0-h-tiny": Preset(
        "IBM Granite 4.0 H Tiny (7B, 1B active): 36 Mamba-2 and 4 attention layers, experts",
        {
            "model_type": "granitemoehybrid",
            "hidden_size": 1536,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "num_hidden_layers": 40,
            "layer_types": _ATTENTION_EVERY_TENTH,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "qwen3-next-80b-a3b": Preset(
        "Qwen3-Next 80B A3B: 36 gated delta-nets and 12 attention layers, 512 experts",
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 48,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "kimi-linear-48b-a3b": Preset(
        "Moonshot Kimi Linear 48B A3B: 20 Kimi delta and 7 latent attention layers, 256 experts",
        {
            "model_type": "kimi_linear",
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [i for i in range(1, 27) if i % 4],
                "num_heads": 32,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "num_experts": 256,
            "num_experts_per_token": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1024,
        },
    ),
}

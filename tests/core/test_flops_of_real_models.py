"""FLOPs against what PyTorch counts in a forward of small models of transformers.

The counter sees matrix products and convolutions, so the count of products with weights
must be ours less convolutions, attention scores and recurrences. Convolutions and scores
are compared with what is counted, too. Recurrences are not: the reference code runs them
element by element, or in chunks that cost more. The tests list their products by shape.
"""

import logging

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from sglang_hybrid.core.model_layers import Dtypes, layers_of  # noqa: E402
from sglang_hybrid.core.presets import PRESETS, grouped, load_model  # noqa: E402

LENGTH, HIDDEN, HEADS, HEAD_DIM, KERNEL = 8, 64, 4, 16, 4
SCORES = 2 * 2 * HEADS * HEAD_DIM * LENGTH**2
"""Of one attention layer: scores and weighted sum."""

COMMON = {
    "vocab_size": 32,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 32,
    "mamba_d_conv": KERNEL,
    "mamba_expand": 2,
}


def mamba2_step(heads=8, head_dim=16, state=32):
    """Decay, outer product added to the state, contraction."""
    per_head = head_dim * state + 2 * head_dim * 1 * state + 2 * 1 * state * head_dim
    return heads * per_head


def mamba1_step(inner, state):
    """dt * A and dt * x * B, decay, addition, contraction."""
    return inner * state * (1 + 1 + 1 + 1) + inner * 2 * state


def delta_step(heads, key_dim, value_dim):
    """Decay, prediction of the value, outer product added, read-out."""
    products = [(1, key_dim, value_dim), (key_dim, 1, value_dim), (1, key_dim, value_dim)]
    return heads * (key_dim * value_dim + sum(2 * m * k * n for m, k, n in products))


# Model type: changes to the configuration; attention layers; convolution channels of all
# layers; FLOPs of one step of all recurrences; scores of one attention layer.
CASES = {
    "granitemoehybrid": (
        MAMBA2
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 80}
        | {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
        (1, 128 + 2 * 2 * 32, mamba2_step(), SCORES),
    ),
    "bamba": (
        MAMBA2 | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
        (1, 2 * (128 + 2 * 2 * 32), 2 * mamba2_step(), SCORES),
    ),
    "falcon_h1": (
        MAMBA2 | {"mamba_d_ssm": 128, "num_hidden_layers": 2},
        (2, 2 * (128 + 2 * 2 * 32), 2 * mamba2_step(), SCORES),
    ),
    "nemotron_h": (
        {"hybrid_override_pattern": "M-*E", "head_dim": HEAD_DIM, "mamba_num_heads": 8}
        | {"mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": KERNEL}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"moe_shared_expert_intermediate_size": 48, "n_shared_experts": 1},
        (1, 128 + 2 * 2 * 32, mamba2_step(), SCORES),
    ),
    "jamba": (
        EXPERTS
        | {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2}
        | {"mamba_d_state": 8, "mamba_dt_rank": 6, "mamba_d_conv": KERNEL},
        (1, 3 * 128, 3 * mamba1_step(128, 8), SCORES),
    ),
    "zamba2": (
        {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]}
        | {"num_key_value_heads": HEADS, "n_mamba_heads": 8, "mamba_ngroups": 1}
        | {"mamba_d_state": 32, "adapter_rank": 4, "use_shared_attention_adapter": True},
        (1, 3 * (128 + 2 * 32), 3 * mamba2_step(), 2 * SCORES),
    ),
    "qwen3_next": (
        EXPERTS
        | {"num_hidden_layers": 4, "head_dim": HEAD_DIM, "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 40}
        | {"mlp_only_layers": [0]},
        (1, 3 * (2 * 2 * 8 + 4 * 16), 3 * delta_step(4, 8, 16), SCORES),
    ),
    "qwen3_5_text": (
        {"num_hidden_layers": 4, "head_dim": HEAD_DIM, "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16},
        (1, 3 * (2 * 2 * 8 + 4 * 16), 3 * delta_step(4, 8, 16), SCORES),
    ),
    "kimi_linear": (
        EXPERTS
        | {"num_hidden_layers": 3, "num_key_value_heads": HEADS, "moe_intermediate_size": 32}
        | {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
        | {
            "linear_attn_config": {
                "kda_layers": [1, 3],
                "full_attn_layers": [2],
                "num_heads": 4,
                "head_dim": 8,
                "short_conv_kernel_size": KERNEL,
            }
        },
        (1, 2 * 3 * 4 * 8, 2 * delta_step(4, 8, 8), 2 * HEADS * (16 + 8 + 12) * LENGTH**2),
    ),
    "lfm2": (
        {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"]}
        | {"conv_L_cache": KERNEL, "block_multiple_of": 16},
        (1, 2 * HIDDEN, 0, SCORES),
    ),
    "lfm2_moe": (
        EXPERTS
        | {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"]}
        | {"conv_L_cache": KERNEL, "moe_intermediate_size": 32, "num_dense_layers": 1},
        (1, 2 * HIDDEN, 0, SCORES),
    ),
}

CLASSES = {
    # By name: SGLang, if some test has imported it, puts classes of its own behind AutoConfig.
    "granitemoehybrid": "GraniteMoeHybrid",
    "bamba": "Bamba",
    "falcon_h1": "FalconH1",
    "nemotron_h": "NemotronH",
    "jamba": "Jamba",
    "zamba2": "Zamba2",
    "qwen3_next": "Qwen3Next",
    "qwen3_5_text": "Qwen3_5Text",
    "kimi_linear": "KimiLinear",
    "lfm2": "Lfm2",
    "lfm2_moe": "Lfm2Moe",
}


def configuration(model_type, fields):
    fields = {name: value for name, value in fields.items() if name != "model_type"}
    return getattr(transformers, f"{CLASSES[model_type]}Config")(**fields)


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    logging.disable(logging.WARNING)  # every model says that it lacks fast kernels
    yield
    logging.disable(logging.NOTSET)


def counted(config):
    """FLOPs of a forward of ``LENGTH`` tokens, by operation."""
    model_class = getattr(transformers, f"{CLASSES[config.model_type]}Model")
    model = model_class._from_config(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.arange(LENGTH)[None] + 3, use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    return {operation.__name__.split(".")[0]: flops for operation, flops in counts.items()}


@pytest.mark.parametrize("model_type", CASES)
def test_flops_are_those_of_a_forward(model_type):
    changes, (attention_layers, channels, step, scores) = CASES[model_type]
    config = configuration(model_type, COMMON | changes)
    ours = sum(layer.prefill_flops(LENGTH) for layer in layers_of(config, Dtypes()))
    counts = counted(config)
    # The reference code convolves the padding on the right as well.
    convolved = counts["convolution"] * LENGTH / (LENGTH + KERNEL - 1)
    assert convolved == 2 * KERNEL * channels * LENGTH
    assert counts["bmm"] >= attention_layers * scores
    assert counts["mm"] == ours - convolved - attention_layers * scores - step * LENGTH
    if not step:
        assert counts["mm"] + counts["bmm"] + convolved == ours


@pytest.mark.parametrize(
    "name", [name for name, preset in PRESETS.items() if preset.config["model_type"] in CLASSES]
)
def test_configurations_of_transformers_give_the_same_as_the_preset(name):
    fields = PRESETS[name].config
    config = configuration(fields["model_type"], fields)
    assert grouped(layers_of(config, Dtypes())) == load_model(name).layers

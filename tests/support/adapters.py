"""LoRA adapters of the small model: random, and large enough to change what it answers."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from sglang_hybrid.model import make_model as small

RANK = 4
STD = 0.5
"""Of the adapters' weights."""


def make_adapter(folder: Path, seed: int) -> Path:
    """Write an adapter of the attention layers' projections; returns its folder."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    head = small.HIDDEN // small.HEADS
    kv = small.KV_HEADS * head
    outputs = {"q_proj": small.HIDDEN, "k_proj": kv, "v_proj": kv, "o_proj": small.HIDDEN}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i, layer in enumerate(small.LAYER_TYPES):
        if layer != "attention":
            continue
        for module, width in outputs.items():
            name = f"base_model.model.model.layers.{i}.self_attn.{module}"
            for part, shape in (("A", (RANK, small.HIDDEN)), ("B", (width, RANK))):
                weight = torch.randn(shape, generator=generator) * STD
                tensors[f"{name}.lora_{part}.weight"] = weight
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder

"""State layers that save states while a prefill runs: hooks around SGLang's.

Each is a no-op unless the running forward has states to save inside its rows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sglang_hybrid.adapter.forward_saves import active
from sglang_hybrid.adapter.saving import Family


def family_of(runner: Any) -> Family | None:
    """How the loaded model's prefill returns states inside a row; None where it does not.

    Args:
        runner: SGLang's `ModelRunner`.
    """
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import Mamba2AttnBackend

    if runner.req_to_token_pool.short_conv_pool.enabled:
        return None
    if runner.req_to_token_pool.ngram_pool.enabled:
        return None
    backend = getattr(runner.attn_backend, "linear_attn_backend", None)
    if isinstance(backend, Mamba2AttnBackend):
        return Family("mamba2", backend.mamba_chunk_size)
    return None


def mamba2(original: Any, mixer: Any, **kwargs: Any) -> Any:
    """Hook around `MambaMixer2.forward`, whose scan returns states at any token."""
    saves = active()
    if saves is None:
        return original(mixer, **kwargs)
    metadata, layer = kwargs["metadata"], kwargs["layer_cache"]
    metadata.track_ssm_seq_idx, metadata.track_ssm_end_locs = saves.rows, saves.ends
    windows = saves.windows_before(layer.conv[0], metadata.mamba_cache_indices)
    output, chunk_states, states = original(mixer, **kwargs)
    saves.write_layer(
        layer.conv[0], layer.temporal, metadata.query_start_loc, states.squeeze(0), windows
    )
    return output, chunk_states, states


def convolution(original: Any, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Hook around the mixer's convolution, (dim, tokens) to the same: note its inputs."""
    saves = active()
    if saves is not None:
        # SGLang's compiled kernel works in place on inputs that lie along the tokens.
        saves.inputs = (inputs.clone() if inputs.stride(-1) == 1 else inputs).t()
    result: Tensor = original(inputs, *args, **kwargs)
    return result

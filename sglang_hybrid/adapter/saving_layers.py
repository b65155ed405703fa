"""State layers that save states while a prefill runs: hooks around SGLang's.

Each only calls the original unless the running forward has states to save inside its rows.
Where saving fails, the original goes on, and the forward has nothing to save any more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_hybrid.adapter.forward_saves import ForwardSaves, active
from sglang_hybrid.adapter.saving import Family
from sglang_hybrid.kernels.advance_gdn import advance_gdn
from sglang_hybrid.kernels.advance_kda import advance_kda


def family_of(runner: Any) -> Family | None:
    """How the loaded model's prefill returns states inside a row; None where it does not.

    Args:
        runner: SGLang's `ModelRunner`.
    """
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
    from sglang.srt.layers.attention.linear import gdn_backend, kda_backend

    pool, attention = runner.req_to_token_pool, runner.attn_backend
    if pool.short_conv_pool.enabled or pool.ngram_pool.enabled:
        return None
    backend = getattr(attention, "linear_attn_backend", None)
    conv = pool.mamba_pool.mamba_cache.conv
    if isinstance(backend, hybrid.Mamba2AttnBackend):
        return Family("mamba2", backend.mamba_chunk_size, conv[0].shape[-1])
    # Of the delta rule's kernels, Triton's returns the states of all chunks.
    if isinstance(backend, gdn_backend.GDNAttnBackend):
        kernel = backend.kernel_dispatcher.extend_kernel
        if isinstance(kernel, gdn_backend.TritonGDNKernel):
            return Family("gdn", backend.mamba_chunk_size, conv[0].shape[-1])
    if isinstance(backend, kda_backend.KDAAttnBackend):
        kernel = backend.kernel_dispatcher.extend_kernel
        in_graph = attention.use_captured_forward_metadata_for_breakable_cuda_graph
        if isinstance(kernel, kda_backend.TritonKDAKernel) and not in_graph:
            return Family("kda", backend.mamba_chunk_size, conv[0].shape[-2])
    return None


_CHUNK_STATES = 4  # argument of `_track_states_at`


# ---- Mamba-2: SGLang's scan returns states at any token ----


def mamba2(original: Any, mixer: Any, **kwargs: Any) -> Any:
    """Hook around `MambaMixer2.forward`."""
    saves = active()
    if saves is None:
        return original(mixer, **kwargs)
    metadata, layer = kwargs["metadata"], kwargs["layer_cache"]
    conv_pool, windows = layer.conv[0], None
    with saves.attempt():
        windows = saves.windows_before(conv_pool, metadata.mamba_cache_indices)
    before = metadata.track_ssm_seq_idx, metadata.track_ssm_end_locs
    if active() is saves:
        metadata.track_ssm_seq_idx, metadata.track_ssm_end_locs = saves.rows, saves.ends
    output, chunk_states, states = original(mixer, **kwargs)
    metadata.track_ssm_seq_idx, metadata.track_ssm_end_locs = before
    if active() is saves:
        with saves.attempt():
            saves.write_layer(
                conv_pool,
                layer.temporal,
                metadata.query_start_loc,
                saves.take_noted(),
                states.squeeze(0),
                windows,
            )
    return output, chunk_states, states


def convolution(original: Any, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Hook around the mixer's convolution of (dim, tokens): note its inputs."""
    saves = active()
    if saves is None:
        return original(inputs, *args, **kwargs)
    with saves.attempt():
        # SGLang's compiled kernel works in place on inputs that lie along the tokens.
        saves.noted = (inputs.clone() if inputs.stride(-1) == 1 else inputs).t()
    return original(inputs, *args, **kwargs)


def scan_states(original: Any, *args: Any) -> Tensor:
    """Hook around `_track_states_at`, the part of SGLang's scan that returns states.

    It runs over the tokens between two positions too, and would leave its tensors where
    these go back: positions of one row are handed over one at a time.
    """
    saves = active()
    if saves is None or len(saves.turns) == 1:
        result: Tensor = original(*args)
        return result
    *inputs, rows, ends = args
    with saves.attempt():
        states = [original(*inputs, rows[turn], ends[turn]) for turn in saves.turns]
        return torch.cat(states, dim=1)[:, saves.back]
    chunk_states: Tensor = args[_CHUNK_STATES]
    return chunk_states  # something; nobody reads it


# ---- delta rule: states of chunks, advanced to the token ----


def gdn(original: Any, backend: Any, **kwargs: Any) -> Any:
    """Hook around `GDNAttnBackend.forward_extend`."""
    saves = active()
    if saves is None:
        return original(backend, **kwargs)
    return _delta_layer(original, backend, kwargs, saves, transposed=False)


def gdn_rule(original: Any, dispatcher: Any, **kwargs: Any) -> Any:
    """Hook around `GDNKernelDispatcher.extend`."""
    result = original(dispatcher, **kwargs)
    saves = active()
    if saves is not None:
        with saves.attempt():
            saves.noted = advance_gdn(
                result[2].squeeze(0),
                *(saves.chunks, saves.starts, saves.lengths),
                *(kwargs[name] for name in ("k", "v", "g", "beta")),
                use_qk_l2norm_in_kernel=True,
            )
    return result


def kda(original: Any, backend: Any, **kwargs: Any) -> Any:
    """Hook around `KDAAttnBackend.forward_extend`."""
    saves = active()
    if saves is None:
        return original(backend, **kwargs)
    return _delta_layer(original, backend, kwargs, saves, transposed=True)


def kda_rule(original: Any, dispatcher: Any, **kwargs: Any) -> Any:
    """Hook around `KDAKernelDispatcher.extend`, which returns chunk states when asked."""
    saves = active()
    if saves is None:
        return original(dispatcher, **kwargs)
    values = kwargs["v"]
    with saves.attempt():
        if values.is_contiguous():  # the kernel may write its output over them
            values = values.clone()
    if active() is None:
        return original(dispatcher, **kwargs)
    output, chunk_states = original(dispatcher, **{**kwargs, "return_intermediate_states": True})
    with saves.attempt():
        saves.noted = advance_kda(
            chunk_states.squeeze(0),
            *(saves.chunks, saves.starts, saves.lengths),
            kwargs["k"],
            values,
            kwargs["g"],
            kwargs["beta"],
            kwargs["A_log"],
            kwargs["dt_bias"],
            kwargs["lower_bound"],
            use_qk_l2norm_in_kernel=True,
            beta_is_raw=kwargs["beta_is_raw"],
        )
    return output


def _delta_layer(
    original: Any, backend: Any, kwargs: dict[str, Any], saves: ForwardSaves, *, transposed: bool
) -> Any:
    """Run a layer and write the states that the hook inside it has noted.

    Args:
        transposed: whether the pool holds convolution states as (slots, window, dim).
    """
    layer = backend.req_to_token_pool.mamba2_layer_cache(kwargs["layer"].layer_id)
    metadata, inputs = backend.forward_metadata, kwargs["mixed_qkv"]
    conv_pool = layer.conv[0].transpose(-1, -2) if transposed else layer.conv[0]
    windows = None
    with saves.attempt():
        windows = saves.windows_before(conv_pool, metadata.mamba_cache_indices)
    output = original(backend, **kwargs)
    states = saves.take_noted()
    if active() is saves and states is not None:
        with saves.attempt():
            saves.write_layer(
                conv_pool, layer.temporal, metadata.query_start_loc, inputs, states, windows
            )
    return output

"""Compare the torch operators of Mamba-2 layers with SGLang's Triton kernels.

A script; prints operator -> largest absolute difference.
"""

import torch
from interpreted import distance, main, rand  # first: it sets up the interpreter
from sglang_hybrid.kernels import causal_conv1d, ssd_scan, state_update


def compare_conv() -> float:
    from sglang.kernels.ops.mamba import causal_conv1d_triton as triton_conv

    dim, width, lens = 16, 4, [5, 1, 9]
    x = rand(sum(lens), dim).t()
    weight, bias, pool = rand(dim, width), rand(dim), rand(6, dim, width - 1)
    bounds = torch.tensor([0, *lens]).cumsum(0).to(torch.int32)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    first = torch.tensor([True, False, True])
    results = []
    for fn in (triton_conv.causal_conv1d_fn, causal_conv1d.causal_conv1d_fn):
        states = pool.clone()
        out = fn(
            x,
            weight,
            bias,
            conv_states=states,
            query_start_loc=bounds,
            seq_lens_cpu=lens,
            cache_indices=slots,
            has_initial_state=first,
            activation="silu",
        )
        results.append((out, states))
    return distance(*results)


def compare_conv_update() -> float:
    from sglang.kernels.ops.mamba import causal_conv1d_triton as triton_conv

    dim, width = 16, 4
    x, weight, bias, pool = rand(3, dim), rand(dim, width), rand(dim), rand(6, dim, width - 1)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    results = []
    for fn in (triton_conv.causal_conv1d_update, causal_conv1d.causal_conv1d_update):
        states = pool.clone()
        out = fn(x.clone(), states, weight, bias, "silu", conv_state_indices=slots)
        results.append((out, states))
    return distance(*results)


def compare_scan() -> float:
    from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined
    from sglang.srt.layers.attention.mamba.mamba2_metadata import Mamba2Metadata

    heads, p, groups, n, chunk, lens = 2, 16, 1, 16, 16, [21, 11, 16]
    tokens = sum(lens)
    x, B, C = rand(1, tokens, heads, p), rand(1, tokens, groups, n), rand(1, tokens, groups, n)
    dt, A, D, dt_bias = rand(1, tokens, heads), -rand(heads).exp(), rand(heads), rand(heads)
    initial = rand(len(lens), heads, p, n)
    bounds = torch.tensor([0, *lens]).cumsum(0).to(torch.int32)
    seq_idx = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.tensor(lens))[None]
    indices, offsets = Mamba2Metadata._query_start_loc_to_chunk_indices_offsets(
        bounds, chunk, tokens
    )
    results = []
    for fn in (mamba_chunk_scan_combined, ssd_scan.mamba_chunk_scan_combined):
        out = torch.empty_like(x)
        states, last, tracked = fn(
            x,
            dt,
            A,
            B,
            C,
            chunk_size=chunk,
            D=D,
            dt_bias=dt_bias,
            seq_idx=seq_idx,
            chunk_indices=indices,
            chunk_offsets=offsets,
            cu_seqlens=bounds,
            initial_states=initial,
            dt_softplus=True,
            out=out,
            return_varlen_states=True,
            return_track_states=True,
            track_seq_idx=torch.tensor([1, 0, 2]),
            track_end_locs=torch.tensor([25, 20, 48]),
            state_dtype=torch.float32,
        )
        # Token 32 is the first of the last sequence: of the grid states only the first two lie
        # inside a sequence, and SGLang reads no others.
        results.append((out, states[:, :2], last, tracked))
    return distance(*results)


def compare_step() -> float:
    from sglang.kernels.ops.mamba.triton_ops.mamba_ssm import selective_state_update

    heads, p, groups, n = 4, 16, 2, 16
    pool, x, dt = rand(6, heads, p, n), rand(3, heads, p), rand(3, heads)
    A, B, C = -rand(heads).exp(), rand(3, groups, n), rand(3, groups, n)
    D, dt_bias = rand(heads), rand(heads)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    results = []
    for fn in (selective_state_update, state_update.selective_state_update):
        states, out = pool.clone(), torch.empty_like(x)
        fn(
            states,
            x,
            dt[:, :, None].expand(-1, -1, p),
            A[:, None, None].expand(-1, p, n),
            B,
            C,
            D[:, None].expand(-1, p),
            dt_bias=dt_bias[:, None].expand(-1, p),
            dt_softplus=True,
            state_batch_indices=slots,
            out=out,
        )
        results.append((out, states))
    return distance(*results)


if __name__ == "__main__":
    main(compare_conv, compare_conv_update, compare_scan, compare_step)

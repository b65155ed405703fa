"""Compare the torch operators of gated delta-net and Kimi delta attention with Triton's.

A script; prints operator -> largest absolute difference.
"""

import torch
from interpreted import distance, main, rand  # first: it sets up the interpreter
from sglang.kernels.ops.attention.fla import op
from sglang_hybrid.kernels import gated_delta, gated_norm, kda, shared_expert
from triton import language as tl

# The interpreter swaps the functions of `tl` while a kernel runs: the kernels' aliases of them,
# made at import, would still be the compiler's.
for name in ("exp", "exp2", "log", "log2"):
    setattr(op, name, lambda x, name=name: getattr(tl, name)(x))

LENS = [70, 1, 33]
SHORT = [16, 1, 9]
KEY_HEADS, HEADS, DIM, SLOTS = 1, 2, 16, 6


def inputs(dtype, lens=LENS):
    tokens = sum(lens)
    return {
        "q": rand(1, tokens, KEY_HEADS, DIM).to(dtype),
        "k": rand(1, tokens, KEY_HEADS, DIM).to(dtype),
        "v": rand(1, tokens, HEADS, DIM).to(dtype),
        "a": rand(tokens, HEADS).to(dtype),
        "b": rand(tokens, HEADS).to(dtype),
        "A_log": rand(HEADS),
        "dt_bias": rand(HEADS),
        "pool": rand(SLOTS, HEADS, DIM, DIM),
        "slots": torch.tensor([4, 0, 2], dtype=torch.int32),
        "bounds": torch.tensor([0, *lens]).cumsum(0).to(torch.int32),
    }


def compare_prefill_bfloat16() -> float:
    from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule

    return _compare_prefill(chunk_gated_delta_rule, torch.bfloat16)


def compare_prefill() -> float:
    """The public function refuses float32; what it wraps does not."""
    from sglang.kernels.ops.attention.fla.chunk import ChunkGatedDeltaRuleFunction

    def run(q, k, v, g, beta, *, initial_state, initial_state_indices, cu_seqlens, **_):
        out, states = ChunkGatedDeltaRuleFunction.apply(
            *(q, k, v, g, beta, DIM**-0.5),
            *(initial_state, initial_state_indices, cu_seqlens, True, True),
        )
        return out, None, states

    return _compare_prefill(run, torch.float32)


def _compare_prefill(theirs, dtype) -> float:
    t = inputs(dtype)
    g, beta = gated_delta.fused_gdn_gating(t["A_log"], t["a"], t["b"], t["dt_bias"])
    results = []
    for fn in (theirs, gated_delta.chunk_gated_delta_rule):
        pool = t["pool"].clone()
        out, _, states = fn(
            *(t["q"], t["k"], t["v"], g, beta),
            initial_state=pool,
            initial_state_indices=t["slots"],
            cu_seqlens=t["bounds"],
            head_first=False,
            use_qk_l2norm_in_kernel=True,
            inplace_update=True,
        )
        results.append((out, states, pool))
    assert [r.dtype for r in results[0]] == [r.dtype for r in results[1]]
    return distance(*results)


def compare_decode() -> float:
    from sglang.kernels.ops.attention.fla.fused_recurrent import (
        fused_recurrent_gated_delta_rule_packed_decode as theirs,
    )

    t = inputs(torch.float32)
    rows = 3
    mixed = torch.cat([t[name][0, :rows].flatten(1) for name in "qkv"], dim=1)
    slots = torch.tensor([4, -1, 2], dtype=torch.int32)
    results = []
    for fn in (theirs, gated_delta.fused_recurrent_gated_delta_rule_packed_decode):
        pool, out = t["pool"].clone(), torch.empty(rows, 1, HEADS, DIM)
        fn(
            mixed,
            t["a"][:rows],
            t["b"][:rows],
            t["A_log"],
            t["dt_bias"],
            0.3,
            pool,
            out,
            slots,
            use_qk_l2norm_in_kernel=True,
        )
        results.append((out, pool))
    return distance(*results)


def compare_gates() -> float:
    from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating

    t = inputs(torch.float32)
    args = (t["A_log"], t["a"], t["b"], t["dt_bias"])
    return distance(fused_gdn_gating(*args), gated_delta.fused_gdn_gating(*args))


def compare_split() -> float:
    from sglang.kernels.ops.attention.triton_gdn_fused_proj import fused_qkvzba_split_reshape_cat

    args = (rand(5, 2 * (2 * 16 + 4 * 8)), rand(5, 8), 2, 4, 16, 8)
    return distance(
        fused_qkvzba_split_reshape_cat(*args), gated_delta.fused_qkvzba_split_reshape_cat(*args)
    )


def compare_norm() -> float:
    from sglang.kernels.ops.attention.fla.fused_norm_gate import rms_norm_gated

    x, gate, weight = rand(5, DIM), rand(5, DIM), rand(DIM)
    pairs = [
        [fn(x.clone(), gate, weight, None, kind) for kind in ("silu", "sigmoid")]
        for fn in (rms_norm_gated, gated_norm.rms_norm_gated)
    ]
    return distance(*pairs)


def compare_shared_expert() -> float:
    from sglang.kernels.ops.elementwise.elementwise import fused_gate_sigmoid_mul_add

    hidden, weight, shared, routed = rand(5, DIM), rand(DIM), rand(5, DIM), rand(5, DIM)
    results = []
    for fn in (fused_gate_sigmoid_mul_add, shared_expert.fused_gate_sigmoid_mul_add):
        out = routed.clone()
        fn(hidden, weight, shared, out)
        results.append((out,))
    return distance(*results)


def kda_inputs(lens=LENS):
    """All heads have keys of their own; the kernel reads gates per channel."""
    t = inputs(torch.float32, lens)
    for name in ("q", "k", "a"):
        t[name] = rand(1, sum(lens), HEADS, DIM)
    return {**t, "dt_bias": rand(HEADS * DIM)}


def compare_kda_prefill() -> float:
    return _compare_kda_prefill(None, SHORT)


def compare_kda_prefill_with_lower_bound() -> float:
    return _compare_kda_prefill(-5.0, SHORT)


def compare_kda_long_prefill() -> float:
    """Beyond 16 tokens the kernel rounds to bfloat16 inside, whatever the dtype of its inputs."""
    return max(_compare_kda_prefill(bound, LENS) for bound in (None, -5.0))


def _compare_kda_prefill(lower_bound, lens) -> float:
    from sglang.kernels.ops.attention.fla.kda import chunk_kda

    t = kda_inputs(lens)
    beta = t["b"].float().sigmoid()[None]  # the interpreter lacks the exponential of raw ones
    results = []
    for fn in (chunk_kda, kda.chunk_kda):
        pool, track = t["pool"].clone(), torch.zeros(len(lens), HEADS, DIM, DIM)
        out, states = fn(
            *(t["q"], t["k"], t["v"].clone(), t["a"], beta),
            initial_state=pool,
            initial_state_indices=t["slots"],
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=t["bounds"],
            A_log=t["A_log"],
            dt_bias=t["dt_bias"],
            lower_bound=lower_bound,
            output_intermediate_states=True,
            track_state=track,
            track_chunk_idx=torch.tensor([(lens[0] - 1) // 64, -1, 0], dtype=torch.int32),
        )
        results.append((out, states, pool, track))
    assert [r.dtype for r in results[0]] == [r.dtype for r in results[1]]
    return distance(*results)


def compare_kda_decode() -> float:
    from sglang.kernels.ops.attention.fla.fused_recurrent import (
        fused_recurrent_kda_packed_decode as theirs,
    )

    t = kda_inputs()
    rows = 3
    mixed = torch.cat([t[name][0, :rows].flatten(1) for name in "qkv"], dim=1)
    slots = torch.tensor([4, -1, 2], dtype=torch.int32)
    results = []
    for fn in (theirs, kda.fused_recurrent_kda_packed_decode):
        pool, out = t["pool"].clone(), torch.empty(rows, 1, HEADS, DIM)
        fn(
            *(mixed, t["a"][0, :rows].flatten(1), t["b"][:rows], t["A_log"], t["dt_bias"], 0.3),
            initial_state=pool,
            out=out,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
        )
        results.append((out, pool))
    return distance(*results)


if __name__ == "__main__":
    main(
        compare_kda_prefill,
        compare_kda_prefill_with_lower_bound,
        compare_kda_long_prefill,
        compare_kda_decode,
        compare_prefill,
        compare_prefill_bfloat16,
        compare_decode,
        compare_gates,
        compare_split,
        compare_norm,
        compare_shared_expert,
    )

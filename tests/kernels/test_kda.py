"""Kimi delta attention's operators against the recurrence, token by token in float64."""

import itertools

import torch
from delta_reference import SLOTS, batches, check_decode, close, make, normalized, recur
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels import kda
from sglang_hybrid.kernels.delta_rule import CHUNK
from torch.nn.functional import softplus

bounds_of_decay = st.sampled_from([None, -5.0])


def decay(t, lower_bound):
    """The paper's gate and the bounded one."""
    step = t["a"][0].double() + t["dt_bias"].double()
    rate = t["A_log"].double().exp()[:, None]
    return -rate * softplus(step) if lower_bound is None else lower_bound * (rate * step).sigmoid()


def prefill(t, pool, lower_bound, tokens=None, slots=None, bounds=None, **options):
    cut = slice(None) if tokens is None else tokens
    return kda.chunk_kda(
        *(t[name][:, cut] for name in ("q", "k", "v", "a", "b")),
        initial_state=pool,
        initial_state_indices=t["slots"] if slots is None else slots,
        cu_seqlens=t["bounds"] if bounds is None else bounds,
        use_qk_l2norm_in_kernel=True,
        A_log=t["A_log"].reshape(1, 1, -1, 1),
        dt_bias=t["dt_bias"].flatten(),
        lower_bound=lower_bound,
        beta_is_raw=True,
        output_intermediate_states=True,
        **options,
    )


@given(batches(), bounds_of_decay, st.integers(-1, 3))
def test_prefill_matches_the_recurrence(case, lower_bound, tracked):
    t = make(case, case["K"])
    pool = t["pool"].clone()
    track = torch.full((len(case["lens"]), *pool.shape[1:]), 7.0)
    out, before = prefill(
        t,
        pool,
        lower_bound,
        track_state=track,
        track_chunk_idx=torch.full((len(case["lens"]),), tracked),
    )
    assert out.dtype == before.dtype == case["dtype"]
    chunk = 0
    untouched = set(range(SLOTS))
    rows = zip(itertools.pairwise(t["bounds"].tolist()), t["slots"].tolist(), strict=True)
    for row, ((a, b), slot) in enumerate(rows):
        y, path = recur(
            normalized(t["q"][0, a:b]) * case["K"] ** -0.5,
            normalized(t["k"][0, a:b]),
            t["v"][0, a:b],
            decay(t, lower_bound)[a:b],
            t["b"][0, a:b].double().sigmoid(),
            t["pool"][slot] if slot >= 0 else torch.zeros_like(t["pool"][0]),
        )
        close(out[0, a:b], y, case["dtype"])
        for token in range(0, b - a, CHUNK):
            close(before[0, chunk], path[token], case["dtype"])
            chunk += 1
        if 0 <= tracked * CHUNK < b - a:
            close(track[row], path[tracked * CHUNK], torch.float32)
        else:
            assert (track[row] == 7).all()
        if slot >= 0:
            untouched.discard(slot)
            close(pool[slot], path[-1], torch.float32)
    assert before.shape[1] == chunk
    for slot in untouched:
        assert torch.equal(pool[slot], t["pool"][slot])


@given(batches(), bounds_of_decay, st.data())
def test_resuming_on_the_chunk_grid_changes_no_bit(case, lower_bound, data):
    other, tokens = case["lens"][0], case["lens"][-1]
    t = make({**case, "lens": [other, tokens], "K": 16, "padded": None}, 16)
    cut = CHUNK * data.draw(st.integers(0, (tokens - 1) // CHUNK))
    whole, parts = t["pool"].clone(), t["pool"].clone()
    want, _ = prefill(t, whole, lower_bound, slots=torch.tensor([2, 3]))
    for first, end in ((other, other + cut), (other + cut, other + tokens)):
        bounds = torch.tensor([0, end - first])
        got, _ = prefill(t, parts, lower_bound, slice(first, end), torch.tensor([3]), bounds)
        assert torch.equal(got, want[:, first:end])
    assert torch.equal(parts[3], whole[3])


@given(batches(), bounds_of_decay)
def test_decode_matches_the_recurrence(case, lower_bound):
    t = make({**case, "lens": [1] * len(case["lens"])}, case["K"])
    pool = t["pool"].clone()
    heads, v_dim = t["v"].shape[2:]
    out = torch.full((len(case["lens"]), 1, heads, v_dim), float("nan"), dtype=case["dtype"])
    kda.fused_recurrent_kda_packed_decode(
        torch.cat([t[name][0].flatten(1) for name in "qkv"], dim=1),
        t["a"][0].flatten(1),
        t["b"][0],
        t["A_log"],
        t["dt_bias"].flatten(),
        scale=0.5,
        initial_state=pool,
        out=out,
        ssm_state_indices=t["slots"],
        use_qk_l2norm_in_kernel=True,
        lower_bound=lower_bound,
    )
    check_decode(t, pool, out, decay(t, lower_bound), t["b"][0].double().sigmoid())


def test_gates_made_by_the_caller_are_taken_as_they_are():
    t = make(
        {
            "lens": [70],
            "key_heads": 1,
            "per_key": 2,
            "K": 3,
            "V": 2,
            "dtype": torch.float32,
            "slots": [1],
            "padded": None,
            "seed": 0,
        },
        3,
    )
    made, raw = t["pool"].clone(), t["pool"].clone()
    want, _ = prefill(t, raw, None)
    got = kda.chunk_kda(
        *(t["q"], t["k"], t["v"], decay(t, None)[None], t["b"].double().sigmoid()),
        initial_state=made,
        initial_state_indices=t["slots"],
        use_qk_l2norm_in_kernel=True,
    )
    close(got, want, torch.float32)
    close(made, raw, torch.float32)

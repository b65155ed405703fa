"""Gated delta-net's operators against the recurrence, token by token in float64."""

import itertools

import pytest
import torch
from delta_reference import SLOTS, batches, check_decode, close, make, normalized, recur
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels import gated_delta
from sglang_hybrid.kernels.delta_rule import CHUNK
from torch.nn.functional import softplus


def gates(t):
    return gated_delta.fused_gdn_gating(
        t["A_log"], t["a"][0, ..., 0], t["b"][0], t["dt_bias"][..., 0]
    )


def prefill(t, g, beta, pool, tokens=None, slots=None, bounds=None, **options):
    cut = slice(None) if tokens is None else tokens
    return gated_delta.chunk_gated_delta_rule(
        *(x[:, cut] for x in (t["q"], t["k"], t["v"], g, beta)),
        initial_state=pool,
        initial_state_indices=t["slots"] if slots is None else slots,
        cu_seqlens=t["bounds"] if bounds is None else bounds,
        use_qk_l2norm_in_kernel=True,
        **options,
    )


@given(batches())
def test_gates_are_those_of_the_paper(case):
    t = make(case, 1)
    log_decay, beta = gates(t)
    want = -t["A_log"].double().exp() * softplus(t["a"][..., 0].double() + t["dt_bias"][:, 0])
    assert log_decay.dtype == beta.dtype == torch.float32
    close(log_decay, want, torch.float32)
    close(beta, t["b"].double().sigmoid(), case["dtype"])


@given(batches(), st.booleans())
def test_prefill_matches_the_recurrence(case, inplace):
    t = make(case, 1)
    g, beta = gates(t)
    pool = t["pool"].clone()
    out, last, before = prefill(t, g, beta, pool, inplace_update=inplace)
    assert last is None
    assert out.dtype == before.dtype == case["dtype"]
    chunk = 0
    untouched = set(range(SLOTS))
    for (a, b), slot in zip(itertools.pairwise(t["bounds"].tolist()), t["slots"], strict=True):
        start = t["pool"][slot] if slot >= 0 else torch.zeros_like(t["pool"][0])
        y, path = recur(
            normalized(t["q"][0, a:b]) * case["K"] ** -0.5,
            normalized(t["k"][0, a:b]),
            t["v"][0, a:b],
            g[0, a:b, :, None],
            beta[0, a:b],
            start,
        )
        close(out[0, a:b], y, case["dtype"])
        for token in range(0, b - a, CHUNK):
            close(before[0, chunk], path[token], case["dtype"])
            chunk += 1
        if slot >= 0 and inplace:
            untouched.discard(int(slot))
            close(pool[slot], path[-1], torch.float32)
    assert before.shape[1] == chunk
    for slot in untouched:
        assert torch.equal(pool[slot], t["pool"][slot])


@given(batches(), st.data())
def test_resuming_on_the_chunk_grid_changes_no_bit(case, data):
    """Behind another sequence of the batch, from the pool or from a checkpoint of an uncut call."""
    other, tokens = case["lens"][0], case["lens"][-1]
    t = make({**case, "lens": [other, tokens], "K": 32, "V": 16, "padded": None}, 1)
    g, beta = gates(t)
    cut = CHUNK * data.draw(st.integers(0, (tokens - 1) // CHUNK))
    whole, parts, checkpoint = t["pool"].clone(), t["pool"].clone(), t["pool"].clone()

    def run(first, end, pool, slots):
        bounds = torch.tensor([0, end - first])
        return prefill(t, g, beta, pool, slice(first, end), torch.tensor(slots), bounds)

    slots = torch.tensor([2, 3])
    want, _, states = prefill(t, g, beta, whole, None, slots)
    behind = other + cut
    if cut:
        run(other, behind, parts, [3])
    got, _, _ = run(behind, other + tokens, parts, [3])
    assert torch.equal(got, want[:, behind:])
    assert torch.equal(parts[3], whole[3])
    if case["dtype"] == torch.float32:
        checkpoint[5] = states[0, -(-other // CHUNK) + cut // CHUNK]
        got, _, _ = run(behind, other + tokens, checkpoint, [5])
        assert torch.equal(got, want[:, behind:])
        assert torch.equal(checkpoint[5], whole[3])


@given(batches(), st.data())
def test_resuming_anywhere_continues(case, data):
    tokens = case["lens"][0]
    t = make({**case, "lens": [tokens]}, 1)
    g, beta = gates(t)
    cut = data.draw(st.integers(0, tokens))
    whole, parts = t["pool"].clone(), t["pool"].clone()
    slots = torch.tensor([3])
    want, _, _ = prefill(t, g, beta, whole, None, slots)
    for first, end in ((0, cut), (cut, tokens)):
        bounds = torch.tensor([0, end - first])
        got, _, _ = prefill(t, g, beta, parts, slice(first, end), slots, bounds)
        close(got, want[:, first:end], case["dtype"])
    close(parts[3], whole[3], torch.float32)


@given(batches())
def test_decode_matches_the_recurrence(case):
    t = make({**case, "lens": [1] * len(case["lens"])}, 1)
    g, beta = gates(t)
    pool = t["pool"].clone()
    batch = len(case["lens"])
    heads, v_dim = t["v"].shape[2:]
    out = torch.full((batch, 1, heads, v_dim), float("nan"), dtype=case["dtype"])
    mixed = torch.cat([t[name][0].flatten(1) for name in "qkv"], dim=1)
    gated_delta.fused_recurrent_gated_delta_rule_packed_decode(
        mixed,
        t["a"][0, ..., 0],
        t["b"][0],
        t["A_log"],
        t["dt_bias"][..., 0],
        scale=0.5,
        initial_state=pool,
        out=out,
        ssm_state_indices=t["slots"],
        use_qk_l2norm_in_kernel=True,
    )
    check_decode(t, pool, out, g[0, ..., None], beta[0])


def test_projections_are_sorted_out_per_key_head():
    # Two key heads of dimension 2, each with two value heads of dimension 1.
    first, second = torch.arange(8), torch.arange(10, 18)  # q q k k v v z z
    mixed, z, b, a = gated_delta.fused_qkvzba_split_reshape_cat(
        torch.cat([first, second])[None], torch.tensor([[0, 1, 2, 3, 10, 11, 12, 13]]), 2, 4, 2, 1
    )
    assert mixed.tolist() == [[0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15]]
    assert z.tolist() == [[[6], [7], [16], [17]]]
    assert b.tolist() == [[0, 1, 10, 11]]
    assert a.tolist() == [[2, 3, 12, 13]]


def test_a_batch_axis_is_refused():
    x = torch.zeros(2, 3, 1, 1)
    with pytest.raises(ValueError, match="size 1"):
        gated_delta.chunk_gated_delta_rule(x, x, x, x[..., 0], x[..., 0])

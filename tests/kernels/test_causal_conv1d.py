"""The torch convolution against sums written out per token in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels.causal_conv1d import (
    PAD_SLOT_ID,
    causal_conv1d_fn,
    causal_conv1d_update,
)

SLOTS = 8


def convolve_by_token(history, x, weight, bias, silu):
    """history (width - 1, dim), x (tokens, dim): float64 outputs and the inputs kept at the end."""
    width = weight.shape[1]
    seen = [row.double() for row in history]
    outs = []
    for row in x:
        seen.append(row.double())
        window = seen[-width:]
        y = sum(weight[:, k].double() * window[k] for k in range(width))
        if bias is not None:
            y = y + bias.double()
        outs.append(y * torch.sigmoid(y) if silu else y)
    return torch.stack(outs), torch.stack(seen[-(width - 1) :])


@st.composite
def batches(draw):
    lens = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    return {
        "lens": lens,
        "dim": draw(st.integers(1, 6)),
        "width": draw(st.integers(2, 4)),
        "spare": draw(st.integers(0, 2)),  # the pool's windows may be wider than needed
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16])),
        "bias": draw(st.booleans()),
        "silu": draw(st.booleans()),
        "initial": draw(st.lists(st.booleans(), min_size=len(lens), max_size=len(lens))),
        "slots": draw(st.permutations(range(SLOTS)))[: len(lens)],
        "padded": draw(st.sampled_from([None, *range(len(lens))])),
        "seed": draw(st.integers(0, 2**16)),
    }


def make(case):
    g = torch.Generator().manual_seed(case["seed"])

    def rand(*shape):
        return torch.randn(*shape, generator=g).to(case["dtype"])

    x = rand(sum(case["lens"]), case["dim"])
    weight = rand(case["dim"], case["width"])
    bias = rand(case["dim"]) if case["bias"] else None
    pool = rand(SLOTS, case["dim"], case["width"] - 1 + case["spare"])
    slots = list(case["slots"])
    if case["padded"] is not None:
        slots[case["padded"]] = PAD_SLOT_ID
    return x, weight, bias, pool, torch.tensor(slots, dtype=torch.int32)


def tolerance(dtype):
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.01}


@given(batches())
def test_prefill_matches_sums_per_token(case):
    x, weight, bias, pool, slots = make(case)
    before = pool.clone()
    bounds = torch.tensor([0, *case["lens"]]).cumsum(0).to(torch.int32)
    out = causal_conv1d_fn(
        x.t(),
        weight,
        bias,
        activation="silu" if case["silu"] else None,
        conv_states=pool,
        has_initial_state=torch.tensor(case["initial"]),
        cache_indices=slots,
        query_start_loc=bounds,
        seq_lens_cpu=case["lens"],
    )
    assert out.shape == x.t().shape and out.dtype == x.dtype
    keep = case["width"] - 1
    untouched = set(range(SLOTS))
    for i, slot in enumerate(slots.tolist()):
        a, b = int(bounds[i]), int(bounds[i + 1])
        if slot == PAD_SLOT_ID:
            continue
        untouched.discard(slot)
        history = (
            before[slot][:, -keep:].t() if case["initial"][i] else torch.zeros(keep, x.shape[1])
        )
        want, kept = convolve_by_token(history, x[a:b], weight, bias, case["silu"])
        torch.testing.assert_close(out[:, a:b].t().double(), want, **tolerance(x.dtype))
        assert torch.equal(pool[slot][:, -keep:].t().double(), kept)
    for slot in untouched:
        assert torch.equal(pool[slot], before[slot])


@given(batches(), st.integers(1, 3), st.booleans())
def test_update_continues_the_sequence(case, tokens, two_dimensional):
    """Also for windows that are wider than the convolution needs."""
    tokens = 1 if two_dimensional else tokens
    _, weight, bias, pool, slots = make(case)
    g = torch.Generator().manual_seed(case["seed"] + 1)
    x = torch.randn(len(slots), pool.shape[1], tokens, generator=g).to(case["dtype"])
    before = pool.clone()
    out = causal_conv1d_update(
        x[..., 0] if two_dimensional else x,
        pool,
        weight,
        bias,
        "silu" if case["silu"] else None,
        conv_state_indices=slots,
    )
    out = out.unsqueeze(-1) if two_dimensional else out
    keep = case["width"] - 1
    for i, slot in enumerate(slots.tolist()):
        if slot == PAD_SLOT_ID:
            assert not out[i].any()
            continue
        history = before[slot][:, -keep:].t()
        want, kept = convolve_by_token(history, x[i].t(), weight, bias, case["silu"])
        torch.testing.assert_close(out[i].t().double(), want, **tolerance(x.dtype))
        assert torch.equal(pool[slot][:, -keep:].t().double(), kept)


@given(batches(), st.data())
def test_cutting_a_prompt_changes_no_bit(case, data):
    """One pass and two passes give the same outputs and the same window."""
    x, weight, bias, pool, _ = make(case)
    cut = data.draw(st.integers(1, max(1, len(x) - 1)))
    whole, parts = pool.clone(), pool.clone()

    def run(piece, states, initial):
        return causal_conv1d_fn(
            piece.t(),
            weight,
            bias,
            conv_states=states,
            has_initial_state=torch.tensor([initial]),
            cache_indices=torch.tensor([3]),
            seq_lens_cpu=[len(piece)],
        )

    want = run(x, whole, False)
    got = [run(x[:cut], parts, False)]
    if cut < len(x):
        got.append(run(x[cut:], parts, True))
    assert torch.equal(torch.cat(got, dim=1), want)
    assert torch.equal(whole, parts)


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="'gelu'"):
        causal_conv1d_fn(torch.zeros(2, 3), torch.zeros(2, 4), activation="gelu")

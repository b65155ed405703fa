"""The chunked scan and the decode step against the recurrence, token by token in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels.ssd_scan import mamba_chunk_scan_combined
from sglang_hybrid.kernels.state_update import PAD_SLOT_ID, selective_state_update


def recur(x, dt, A, B, C, D, z, dt_bias, state, softplus=True, limit=(0.0, float("inf"))):
    """One sequence: x, z (tokens, heads, p), dt (tokens, heads), B, C (tokens, groups, n).

    Returns y (tokens, heads, p) and the states before every token and after the last one
    (tokens + 1, heads, p, n), all float64.
    """
    tokens, heads, _ = x.shape
    per_group = heads // B.shape[1]
    states, ys = [state.double()], []
    for t in range(tokens):
        h = states[-1].clone()
        y = torch.empty(x.shape[1:], dtype=torch.float64)
        for head in range(heads):
            step = dt[t, head].double()
            if dt_bias is not None:
                step = step + dt_bias[head].double()
            if softplus:
                step = torch.log1p(torch.exp(step))
            step = step.clamp(*limit)
            b, c = B[t, head // per_group].double(), C[t, head // per_group].double()
            h[head] = h[head] * torch.exp(step * A[head].double()) + step * torch.outer(
                x[t, head].double(), b
            )
            y[head] = h[head] @ c
            if D is not None:
                y[head] += D[head].double() * x[t, head].double()
            if z is not None:
                gate = z[t, head].double()
                y[head] *= gate * torch.sigmoid(gate)
        states.append(h)
        ys.append(y)
    return torch.stack(ys), torch.stack(states)


@st.composite
def scans(draw):
    lens = draw(st.lists(st.integers(1, 21), min_size=1, max_size=4))
    return {
        "lens": lens,
        "chunk": draw(st.sampled_from([4, 8, 16])),
        "groups": draw(st.sampled_from([1, 2])),
        "heads_per_group": draw(st.integers(1, 2)),
        "p": draw(st.integers(1, 4)),
        "n": draw(st.integers(1, 4)),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16])),
        "D": draw(st.sampled_from([None, "heads", "full"])),
        "z": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "initial": draw(st.booleans()),
        "limit": draw(st.sampled_from([(0.0, float("inf")), (0.1, 0.5)])),
        "seed": draw(st.integers(0, 2**16)),
    }


def make(case):
    g = torch.Generator().manual_seed(case["seed"])
    tokens, heads = sum(case["lens"]), case["groups"] * case["heads_per_group"]
    p, n = case["p"], case["n"]

    def rand(*shape, dtype=case["dtype"]):
        return torch.randn(*shape, generator=g).to(dtype)

    return {
        "x": rand(1, tokens, heads, p),
        "dt": rand(1, tokens, heads),
        "A": -torch.exp(rand(heads, dtype=torch.float32)),
        "B": rand(1, tokens, case["groups"], n),
        "C": rand(1, tokens, case["groups"], n),
        "D": {None: None, "heads": rand(heads), "full": rand(heads, p)}[case["D"]],
        "z": rand(1, tokens, heads, p) if case["z"] else None,
        "dt_bias": rand(heads) if case["bias"] else None,
        "initial_states": (
            rand(len(case["lens"]), heads, p, n, dtype=torch.float32) if case["initial"] else None
        ),
    }


def close(got, want, dtype):
    # Outputs are rounded once to their dtype; states stay in float32.
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@given(scans(), st.data())
def test_scan_matches_the_recurrence(case, data):
    t = make(case)
    bounds = torch.tensor([0, *case["lens"]]).cumsum(0)
    seqs = data.draw(st.lists(st.integers(0, len(case["lens"]) - 1), max_size=4))
    ends = [data.draw(st.integers(int(bounds[s]), int(bounds[s + 1]))) for s in seqs]
    out = torch.empty_like(t["x"])
    states, last, tracked = mamba_chunk_scan_combined(
        **t,
        chunk_size=case["chunk"],
        cu_seqlens=bounds.to(torch.int32),
        dt_softplus=True,
        dt_limit=case["limit"],
        out=out,
        return_varlen_states=True,
        return_track_states=True,
        track_seq_idx=torch.tensor(seqs, dtype=torch.long),
        track_end_locs=torch.tensor(ends, dtype=torch.long),
        state_dtype=torch.float32,
    )
    assert states.shape[1] == -(-int(bounds[-1]) // case["chunk"])
    if not seqs:
        assert tracked is None
    heads = t["x"].shape[2]
    for i, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        start = (
            torch.zeros(heads, case["p"], case["n"])
            if t["initial_states"] is None
            else t["initial_states"][i]
        )
        y, path = recur(
            t["x"][0, a:b],
            t["dt"][0, a:b],
            t["A"],
            t["B"][0, a:b],
            t["C"][0, a:b],
            None if t["D"] is None else t["D"].reshape(heads, -1).expand(heads, case["p"]),
            None if t["z"] is None else t["z"][0, a:b],
            t["dt_bias"],
            start,
            limit=case["limit"],
        )
        close(out[0, a:b], y, case["dtype"])
        close(last[i], path[-1], torch.float32)
        for c in range(states.shape[1]):
            if a <= c * case["chunk"] < b:
                close(states[0, c], path[c * case["chunk"] - a], torch.float32)
        for row, (seq, end) in enumerate(zip(seqs, ends, strict=True)):
            if seq == i:
                close(tracked[0, row], path[end - a], torch.float32)


@given(scans(), st.data())
def test_a_scan_resumed_from_its_state_continues(case, data):
    """The hit path: a second call from the first one's state equals one long call."""
    case = {**case, "lens": [sum(case["lens"])], "initial": False}
    t = make(case)
    tokens = case["lens"][0]
    cut = data.draw(st.integers(0, tokens))

    def run(a, b, initial):
        piece = {
            k: v[:, a:b] if k in "xBCz" or k == "dt" else v for k, v in t.items() if v is not None
        }
        out = torch.empty_like(piece["x"])
        state = mamba_chunk_scan_combined(
            **{**piece, "initial_states": initial},
            chunk_size=case["chunk"],
            cu_seqlens=torch.tensor([0, b - a]),
            dt_softplus=True,
            out=out,
            return_varlen_states=True,
            state_dtype=torch.float32,
        )
        return out, state

    want, want_state = run(0, tokens, None)
    first, state = run(0, cut, None)
    second, state = run(cut, tokens, state)
    got = torch.cat([first, second], dim=1)
    close(got, want.double(), case["dtype"])
    close(state, want_state.double(), torch.float32)
    if cut % case["chunk"] == 0 and case["dtype"] == torch.bfloat16:
        assert torch.equal(got, want)
        assert torch.equal(state, want_state)


@given(scans(), st.booleans())
def test_decode_step_matches_the_recurrence(case, with_padding):
    case = {**case, "lens": [1] * len(case["lens"]), "D": case["D"] and "heads"}
    t = make(case)
    batch, heads, p, n = len(case["lens"]), t["x"].shape[2], case["p"], case["n"]
    g = torch.Generator().manual_seed(case["seed"] + 1)
    pool = torch.randn(9, heads, p, n, generator=g)
    slots = torch.randperm(9, generator=g)[:batch].to(torch.int32)
    if with_padding:
        slots[0] = PAD_SLOT_ID
    before = pool.clone()
    out = torch.full((batch, heads, p), float("nan"), dtype=case["dtype"])

    def per_head(v):
        return None if v is None else v[:, None].expand(-1, p)

    selective_state_update(
        pool,
        t["x"][0],
        t["dt"][0][:, :, None].expand(-1, -1, p),
        t["A"][:, None, None].expand(-1, p, n),
        t["B"][0],
        t["C"][0],
        per_head(t["D"]),
        z=None if t["z"] is None else t["z"][0],
        dt_bias=per_head(t["dt_bias"]),
        dt_softplus=True,
        state_batch_indices=slots,
        out=out,
    )
    for i, slot in enumerate(slots.tolist()):
        if slot == PAD_SLOT_ID:
            assert not out[i].any()
            continue
        y, path = recur(
            *(
                t[k][0, i : i + 1] if k in ("x", "dt", "B", "C") else t[k]
                for k in ("x", "dt", "A", "B", "C")
            ),
            per_head(t["D"]),
            None if t["z"] is None else t["z"][0, i : i + 1],
            t["dt_bias"],
            before[slot],
        )
        close(out[i], y[0], case["dtype"])
        close(pool[slot], path[1], torch.float32)
    rest = [s for s in range(9) if s not in slots.tolist()]
    assert torch.equal(pool[rest], before[rest])


def test_a_batch_axis_is_refused():
    with pytest.raises(ValueError, match="size 1"):
        mamba_chunk_scan_combined(
            *(torch.zeros(2, 3, 1, 1), torch.zeros(2, 3, 1), torch.zeros(1)),
            *(torch.zeros(2, 3, 1, 1), torch.zeros(2, 3, 1, 1)),
            4,
        )

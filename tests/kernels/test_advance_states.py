"""States between chunk boundaries against the recurrence, token by token in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels.advance_gdn import advance_gdn
from sglang_hybrid.kernels.advance_kda import advance_kda
from sglang_hybrid.kernels.advance_mamba2 import advance_mamba2

from bench.gpu import checkpoint_cases as cases
from bench.gpu.shapes import DeltaShape, Mamba2Shape

# The torch versions compute in float64 as the recurrence does; what is left is the one rounding
# of the result to float32, half a unit in the last place of the largest value.
TOLERANCE = 1e-7

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
COUNTS = {
    "n": st.integers(1, 5),
    "tokens": st.integers(1, 40),
    "dtype": DTYPES,
    "h_dtype": DTYPES,
}
MAKERS = st.builds(cases.Maker, st.integers(0, 2**16), strided=st.booleans())


@st.composite
def delta_shapes(draw, grouped=True):
    key_heads = draw(st.integers(1, 3))
    return DeltaShape(
        key_heads,
        key_heads * (draw(st.integers(1, 3)) if grouped else 1),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 6)),
        per_channel=not grouped,
        chunk=16,
    )


def mamba2_shapes():
    groups = st.integers(1, 2)
    return st.builds(
        lambda groups, per_group, p, n: Mamba2Shape(groups * per_group, p, groups, n, chunk=16),
        *(groups, st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    )


@given(
    make=MAKERS,
    shape=mamba2_shapes(),
    bias=st.booleans(),
    limit=st.sampled_from([(0.0, float("inf")), (0.1, 0.5)]),
    **COUNTS,
)
def test_mamba2(make, shape, n, tokens, dtype, h_dtype, bias, limit):
    case = cases.mamba2_case(make, shape, n, tokens, dtype, h_dtype)
    case.update(dt_limit=limit, dt_bias=case["dt_bias"] if bias else None)
    assert cases.relative_error(advance_mamba2(**case), cases.expected_mamba2(case)) < TOLERANCE


@given(make=MAKERS, shape=delta_shapes(), l2norm=st.booleans(), **COUNTS)
def test_gated_delta_net(make, shape, n, tokens, dtype, h_dtype, l2norm):
    case = cases.gdn_case(make, shape, n, tokens, dtype, h_dtype)
    if not l2norm:  # a longer key makes the rule diverge
        case.update(use_qk_l2norm_in_kernel=False, k=case["k"] / case["k"].norm(dim=-1).max())
    assert cases.relative_error(advance_gdn(**case), cases.expected_gdn(case)) < TOLERANCE


@given(
    make=MAKERS,
    shape=delta_shapes(grouped=False),
    lower_bound=st.sampled_from([None, -5.0]),
    bias=st.booleans(),
    raw_beta=st.booleans(),
    **COUNTS,
)
def test_kimi_delta_attention(make, shape, n, tokens, dtype, h_dtype, lower_bound, bias, raw_beta):
    case = cases.kda_case(make, shape, n, tokens, dtype, h_dtype, lower_bound)
    case.update(dt_bias=case["dt_bias"] if bias else None)
    if not raw_beta:
        case.update(beta_is_raw=False, beta=torch.sigmoid(case["beta"]))
    assert cases.relative_error(advance_kda(**case), cases.expected_kda(case)) < TOLERANCE


SMALL = {
    "mamba2": (advance_mamba2, cases.mamba2_case, Mamba2Shape(4, 3, 2, 5, chunk=16)),
    "gdn": (advance_gdn, cases.gdn_case, DeltaShape(1, 2, 4, 4, False, chunk=16)),
    "kda": (advance_kda, cases.kda_case, DeltaShape(2, 2, 4, 4, True, chunk=16)),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_tokens_give_the_boundary_state(name):
    """Also where no token lies behind it."""
    advance, make_case, shape = SMALL[name]
    case = make_case(cases.Maker(0), shape, 3, 8, torch.bfloat16, torch.bfloat16)
    case["lengths"], case["starts"] = torch.zeros(3, dtype=torch.long), torch.tensor([0, 8, 5])
    assert torch.equal(advance(**case), case["h"][case["h_index"]].float())


@pytest.mark.parametrize("name", SMALL)
def test_a_state_does_not_depend_on_later_tokens(name):
    """What lies behind a checkpoint, another sequence or padding, may even be NaN."""
    advance, make_case, shape = SMALL[name]
    case = make_case(cases.Maker(0), shape, 2, 16, torch.float32, torch.float32)
    case["starts"], case["lengths"] = torch.tensor([0, 2]), torch.tensor([9, 3])
    want = advance(**case)
    for value in case.values():
        if isinstance(value, torch.Tensor) and value.dim() >= 3 and value.shape[:2] == (1, 16):
            value[:, 9:] = float("nan")
    assert torch.equal(advance(**case), want)


@pytest.mark.parametrize("name", SMALL)
def test_where_the_way_is_cut_changes_little(name):
    """Two steps through a float32 state are one step, up to that state's rounding."""
    advance, make_case, shape = SMALL[name]
    case = make_case(cases.Maker(0), shape, 1, 16, torch.bfloat16, torch.float32)
    case["starts"], case["lengths"] = torch.tensor([1]), torch.tensor([12])
    want = advance(**case)
    case["lengths"] = torch.tensor([5])
    middle = advance(**case)
    case.update(h=middle, h_index=torch.tensor([0]))
    case.update(starts=torch.tensor([6]), lengths=torch.tensor([7]))
    torch.testing.assert_close(advance(**case), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_no_checkpoints(name):
    advance, make_case, shape = SMALL[name]
    case = make_case(cases.Maker(0), shape, 1, 4, torch.float32, torch.float32)
    for key in ("h_index", "starts", "lengths"):
        case[key] = case[key][:0]
    assert advance(**case).shape == (0, *shape.state_shape)

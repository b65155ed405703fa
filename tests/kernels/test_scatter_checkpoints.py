"""Checkpoints in their slots: every element written, in the pool's type, and nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels.scatter_checkpoints import scatter_checkpoints

from bench.gpu import checkpoint_cases as cases

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


@given(
    make=st.builds(cases.Maker, st.integers(0, 2**16), strided=st.booleans()),
    dim=st.integers(1, 7),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    per_row=st.integers(1, 3),
    history=st.integers(1, 4),
    dtype=DTYPES,
    state_dtype=DTYPES,
    transposed=st.booleans(),
    with_windows=st.booleans(),
)
def test_slots_hold_the_checkpoints(make, dim, lengths, per_row, with_windows, **options):
    case = cases.scatter_case(
        make, (2, 3, 2), dim, lengths, per_row, with_windows=with_windows, **options
    )
    want = cases.expected_scatter(case)
    scatter_checkpoints(**case)
    got = case["conv_pool"], case["ssm_pool"]
    assert cases.wrong_elements(got, want) == 0
    written = case["slots"][case["slots"] >= 0]
    assert not any(pool[written].isnan().any() for pool in got)


def test_no_checkpoints():
    case = cases.scatter_case(cases.Maker(0), (2,), 3, [4], 1)
    case["slots"].fill_(-1)
    before = case["conv_pool"].clone(), case["ssm_pool"].clone()
    scatter_checkpoints(**case)
    assert cases.wrong_elements((case["conv_pool"], case["ssm_pool"]), before) == 0

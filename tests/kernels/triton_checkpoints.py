"""Run the checkpoint kernels on random small inputs through Triton's interpreter.

A script of its own: ``TRITON_INTERPRET`` must be set before triton is first imported. Prints one
line of JSON: kernel -> largest error over its cases.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from sglang_hybrid.kernels.advance_delta_triton import advance_gdn_triton, advance_kda_triton
from sglang_hybrid.kernels.advance_mamba2_triton import advance_mamba2_triton
from sglang_hybrid.kernels.scatter_checkpoints_triton import scatter_checkpoints_triton

from bench.gpu import checkpoint_cases as cases
from bench.gpu.shapes import DeltaShape, Mamba2Shape

DTYPES = (torch.float32, torch.bfloat16)


def counts(rng: random.Random) -> dict:
    return {
        "n": rng.randint(1, 2),
        "tokens": rng.randint(1, 90),
        "dtype": rng.choice(DTYPES),
        "h_dtype": rng.choice(DTYPES),
    }


def mamba2(rng: random.Random, make: cases.Maker) -> float:
    groups = rng.randint(1, 2)
    heads = groups * rng.randint(1, 2)
    shape = Mamba2Shape(heads, rng.choice((5, 16, 70)), groups, rng.choice((3, 32, 66)), chunk=80)
    case = cases.mamba2_case(make, shape, **counts(rng))
    case["dt_limit"] = rng.choice(((0.0, float("inf")), (0.1, 0.5)))
    case["dt_bias"] = rng.choice((None, case["dt_bias"]))
    return cases.relative_error(advance_mamba2_triton(**case), cases.expected_mamba2(case))


def gdn(rng: random.Random, make: cases.Maker) -> float:
    key_heads = rng.randint(1, 2)
    value_heads = key_heads * rng.randint(1, 2)
    dims = rng.choice((4, 16, 24)), rng.choice((3, 8, 20))
    shape = DeltaShape(key_heads, value_heads, *dims, per_channel=False)
    case = cases.gdn_case(make, shape, **counts(rng))
    if rng.random() < 0.5:  # a longer key makes the rule diverge
        case.update(use_qk_l2norm_in_kernel=False, k=case["k"] / case["k"].norm(dim=-1).max())
    return cases.relative_error(advance_gdn_triton(**case), cases.expected_gdn(case))


def kda(rng: random.Random, make: cases.Maker) -> float:
    heads = rng.randint(1, 3)
    dims = rng.choice((4, 16, 24)), rng.choice((3, 8, 20))
    shape = DeltaShape(heads, heads, *dims, per_channel=True)
    bound = rng.choice((None, -5.0))
    case = cases.kda_case(make, shape, **counts(rng), lower_bound=bound)
    case["dt_bias"] = rng.choice((None, case["dt_bias"]))
    if rng.random() < 0.5:
        case.update(beta_is_raw=False, beta=torch.sigmoid(case["beta"]))
    return cases.relative_error(advance_kda_triton(**case), cases.expected_kda(case))


def scatter(rng: random.Random, make: cases.Maker) -> float:
    case = cases.scatter_case(
        make,
        rng.choice(((2, 3, 4), (3, 1000))),
        rng.choice((5, 600)),
        [rng.randint(1, 9) for _ in range(rng.randint(1, 3))],
        rng.randint(1, 3),
        history=rng.randint(1, 4),
        dtype=rng.choice(DTYPES),
        state_dtype=rng.choice(DTYPES),
        transposed=rng.random() < 0.5,
        with_windows=rng.random() < 0.8,
        rounded_states=True,
    )
    want = cases.expected_scatter(case)
    scatter_checkpoints_triton(**case)
    return cases.wrong_elements((case["conv_pool"], case["ssm_pool"]), want)


def large_pool() -> float:
    """As `scatter`, to a slot behind element 2^31; the pool is a file with holes."""
    with tempfile.NamedTemporaryFile() as file:
        size, stride = 5 * 2**29, 2**28
        elements = torch.from_file(file.name, shared=True, size=size, dtype=torch.bfloat16)
        pool = elements.as_strided((10, 8), (stride, 1))
        scatter_checkpoints_triton(
            torch.zeros(10, 4, 3),
            pool,
            torch.zeros(5, 4),
            query_start_loc=torch.tensor([0, 5], dtype=torch.int32),
            rows=torch.tensor([0]),
            ends=torch.tensor([5]),
            slots=torch.tensor([9]),
            states=torch.arange(8.0)[None],
        )
        return cases.wrong_elements((pool[9],), (torch.arange(8.0),))


if __name__ == "__main__":
    torch.set_num_threads(1)
    checks = {mamba2: 12, gdn: 6, kda: 8, scatter: 25}
    errors = {}
    for check, seeds in checks.items():
        errors[check.__name__] = max(
            check(random.Random(seed), cases.Maker(seed, strided=seed % 2 == 1))
            for seed in range(seeds)
        )
    errors["large pool"] = large_pool()
    print(json.dumps(errors))

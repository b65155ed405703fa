"""Check and time the checkpoint kernels on one GPU: ``python bench/gpu/exact_checkpoints.py``.

Needs torch, triton and numpy, neither SGLang nor an installed package. Prints a line per case
with its largest error, then a table of times beside the floors of bytes and FLOPs. Exits with 1
if a case fails, with 2 without a GPU. ``--interpret`` checks tiny shapes on the CPU instead,
through Triton's interpreter.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import triton

from bench.gpu import checkpoint_cases as cases
from bench.gpu.shapes import (
    MODELS,
    DeltaShape,
    Mamba2Shape,
    Shape,
    advance_bytes,
    advance_flops,
    scatter_bytes,
    state_elements,
)
from kernels.advance_delta_triton import advance_gdn_triton, advance_kda_triton
from kernels.advance_mamba2_triton import advance_mamba2_triton
from kernels.scatter_checkpoints_triton import scatter_checkpoints_triton

# Steps in float32 with a GPU's approximate exp and log, in units of the largest value.
TOLERANCE = 2e-5
COUNTS = (1, 8, 64)
TINY = {
    "tiny Mamba-2": Mamba2Shape(2, 16, groups=1, d_state=16, chunk=40),
    "tiny GDN": DeltaShape(1, 2, 16, 16, per_channel=False, chunk=16),
    "tiny KDA": DeltaShape(2, 2, 16, 16, per_channel=True, chunk=16),
}


def advance_case(shape: Shape, make: cases.Maker, n: int, tokens: int, **options):
    """The launcher, its inputs and the function that gives what it must return."""
    types = (torch.bfloat16, options.pop("h_dtype", torch.float32))
    if isinstance(shape, Mamba2Shape):
        return (
            advance_mamba2_triton,
            cases.mamba2_case(make, shape, n, tokens, *types),
            cases.expected_mamba2,
        )
    if shape.per_channel:
        return (
            advance_kda_triton,
            cases.kda_case(make, shape, n, tokens, *types, **options),
            cases.expected_kda,
        )
    return advance_gdn_triton, cases.gdn_case(make, shape, n, tokens, *types), cases.expected_gdn


def advance_errors(shapes: dict[str, Shape], device: str, n: int) -> Iterator[tuple[str, float]]:
    for name, shape in shapes.items():
        variants = {
            "float32 boundaries": {},
            "bfloat16 boundaries": {"h_dtype": torch.bfloat16},
            "strided": {"strided": True},
        }
        if isinstance(shape, DeltaShape) and shape.per_channel:
            variants["bounded gate"] = {"lower_bound": -5.0}
        for seed, (variant, options) in enumerate(variants.items()):
            make = cases.Maker(seed, device, options.pop("strided", False))
            kernel, case, expected = advance_case(shape, make, n, 3 * shape.chunk, **options)
            yield f"advance {name}, {variant}", cases.relative_error(kernel(**case), expected(case))


def scatter_errors(shapes: dict[str, Shape], device: str) -> Iterator[tuple[str, int]]:
    """Numbers of wrong elements in both pools."""
    variants = {
        "float32 pool": {},
        "bfloat16 pool": {"state_dtype": torch.bfloat16},
        "transposed windows": {"transposed": True},
        "no windows": {"with_windows": False},
    }
    for name, shape in shapes.items():
        for seed, (variant, options) in enumerate(variants.items()):
            case = cases.scatter_case(
                cases.Maker(seed, device, strided=seed % 2 == 1),
                shape.state_shape,
                shape.conv_dim,
                [20, 9, 2, 1],
                2,
                rounded_states=device == "cpu",
                **options,
            )
            yield f"scatter {name}, {variant}", wrong_after_scatter(case)


def wrong_after_scatter(case: cases.Case) -> int:
    want = cases.expected_scatter(case)
    scatter_checkpoints_triton(**case)
    return cases.wrong_elements((case["conv_pool"], case["ssm_pool"]), want)


def large_pool_error() -> Iterator[tuple[str, int]]:
    """Slots behind element 2^31 of a pool."""
    shape = MODELS["Nemotron-H-8B"].shape
    spare = 2**31 // state_elements(shape)
    if torch.cuda.mem_get_info()[0] < 32 * 2**30:
        print("skipped: scatter into a pool of more than 2^31 elements needs 32 GiB")
        return
    case = cases.scatter_case(
        cases.Maker(0, "cuda"),
        shape.state_shape,
        shape.conv_dim,
        [9, 4],
        2,
        state_dtype=torch.bfloat16,
        spare_slots=spare,
    )
    yield "scatter, pool of more than 2^31 elements", wrong_after_scatter(case)


def check(device: str) -> bool:
    """Whether all cases are right; prints them."""
    if device == "cuda":
        shapes, n = {name: model.shape for name, model in MODELS.items()}, 8
    else:
        shapes, n = TINY, 2
    results = [(*result, TOLERANCE) for result in advance_errors(shapes, device, n)]
    results += [(*result, 0) for result in scatter_errors(shapes, device)]
    if device == "cuda":
        results += [(*result, 0) for result in large_pool_error()]
    for name, error, tolerance in results:
        unit = "wrong elements" if tolerance == 0 else f"(tolerance {tolerance:g})"
        print(f"{'ok  ' if error <= tolerance else 'FAIL'}  {name}: {error:.3g} {unit}")
    failed = sum(not error <= tolerance for _, error, tolerance in results)  # NaN fails too
    print(f"{len(results) - failed} of {len(results)} cases ok\n")
    return failed == 0


def milliseconds(run) -> float:
    return triton.testing.do_bench(run, warmup=10, rep=50, return_mode="median")


def copy_bandwidth() -> float:
    """Bytes per second of a copy of 1 GiB, reads and writes counted."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) * 1e3


def float32_rate() -> float:
    """FLOPs per second of a float32 matrix product without TF32."""
    size = 4096
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(size, size, device="cuda")
    return 2 * size**3 / milliseconds(lambda: a @ a) * 1e3


def timed_advance(shape: Shape, n: int) -> tuple[float, int, int]:
    """Milliseconds, bytes and FLOPs, half a chunk behind each boundary."""
    half = shape.chunk // 2
    h_dtype = torch.float32 if shape.boundary_bytes == 4 else torch.bfloat16
    make = cases.Maker(0, "cuda")
    kernel, case, _ = advance_case(shape, make, n, (n + 1) * shape.chunk, h_dtype=h_dtype)
    boundaries = make.normal(n, *shape.state_shape, dtype=h_dtype)
    index = torch.arange(n, device="cuda")
    case.update(h=boundaries, h_index=index, starts=index * shape.chunk)
    case["lengths"] = torch.full_like(index, half)
    time = milliseconds(lambda: kernel(**case))
    return time, n * advance_bytes(shape, half), n * advance_flops(shape, half)


def timed_scatter(shape: Shape, n: int) -> tuple[float, int, int]:
    make = cases.Maker(0, "cuda")
    case = cases.scatter_case(make, shape.state_shape, shape.conv_dim, [shape.chunk] * n, 1)
    index = torch.arange(n, device="cuda")
    case.update(slots=index + 1)
    case.update(rows=index, ends=index * shape.chunk + shape.chunk // 2)
    time = milliseconds(lambda: scatter_checkpoints_triton(**case))
    return time, n * scatter_bytes(shape), 0


def measure() -> None:
    bandwidth, rate = copy_bandwidth(), float32_rate()
    print(f"copy {bandwidth / 1e12:.2f} TB/s, float32 product {rate / 1e12:.1f} TFLOP/s")
    print("floor: the larger of bytes and FLOPs at these rates; advance: half a chunk\n")
    print("| model | kernel | n | MB | GFLOP | us | floor us | times floor |")
    print("|---|---|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        for kernel, timed in (("advance", timed_advance), ("scatter", timed_scatter)):
            for n in COUNTS:
                time, moved, flops = timed(model.shape, n)
                floor = max(moved / bandwidth, flops / rate) * 1e6
                print(
                    f"| {name} | {kernel} | {n} | {moved / 1e6:.1f} | {flops / 1e9:.2f} "
                    f"| {time * 1e3:.1f} | {floor:.1f} | {time * 1e3 / floor:.1f} |"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--interpret", action="store_true", help="check tiny shapes on the CPU, without times"
    )
    if parser.parse_args().interpret:
        return 0 if check("cpu") else 1
    if not torch.cuda.is_available():
        print("exact_checkpoints: no CUDA GPU; --interpret checks tiny shapes without one")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    right = check("cuda")
    measure()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

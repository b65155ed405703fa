"""The checkpoint kernels compile for a GPU; the interpreter accepts what the compiler does not."""

import pytest
import torch

from bench.gpu import checkpoint_cases as cases
from bench.gpu.shapes import DeltaShape, Mamba2Shape

triton = pytest.importorskip("triton")

from sglang_hybrid.kernels import (  # noqa: E402
    advance_delta_triton,
    advance_mamba2_triton,
    scatter_checkpoints_triton,
)
from triton.backends.compiler import GPUTarget  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
TYPES = (2, 40, torch.bfloat16, torch.float32)
MAKE = cases.Maker(0)
GDN = DeltaShape(1, 2, 128, 128, per_channel=False)
KDA = DeltaShape(2, 2, 128, 128, per_channel=True)


class Launch:
    """Stands for a kernel and keeps what it is launched with."""

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **options):
        self.args, self.options = args, options


def compile_launch(monkeypatch, module, kernel_name, launcher, case):
    kernel, launch = getattr(module, kernel_name), Launch()
    monkeypatch.setattr(module, kernel_name, launch)
    launcher(**case)
    num_warps = launch.options.pop("num_warps")
    values = dict(zip(kernel.arg_names, launch.args, strict=False)) | launch.options
    # As a launch does: None, 1 and what is declared so are constants.
    constants = {
        name: value
        for name, value in values.items()
        if value is None or name in launch.options or (type(value) is int and value == 1)
    }
    signature = {
        name: "constexpr"
        if name in constants
        else POINTERS[value.dtype]
        if isinstance(value, torch.Tensor)
        else {int: "i32", float: "fp32"}[type(value)]
        for name, value in values.items()
    }
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=HOPPER, options={"num_warps": num_warps})


@pytest.mark.parametrize("bias", [True, False])
def test_mamba2(monkeypatch, bias):
    case = cases.mamba2_case(MAKE, Mamba2Shape(2, 64, 1, 128, chunk=128), *TYPES)
    case.update(dt_bias=case["dt_bias"] if bias else None)
    module = advance_mamba2_triton
    assert compile_launch(
        monkeypatch, module, "_advance_mamba2_kernel", module.advance_mamba2_triton, case
    ).asm["cubin"]


@pytest.mark.parametrize(
    "launcher, case",
    [
        ("advance_gdn_triton", cases.gdn_case(MAKE, GDN, *TYPES)),
        ("advance_kda_triton", cases.kda_case(MAKE, KDA, *TYPES)),
        ("advance_kda_triton", cases.kda_case(MAKE, KDA, *TYPES, lower_bound=-5.0)),
    ],
    ids=["gdn", "kda", "kda bounded"],
)
def test_delta_rules(monkeypatch, launcher, case):
    module = advance_delta_triton
    assert compile_launch(
        monkeypatch, module, "_advance_delta_rule_kernel", getattr(module, launcher), case
    ).asm["cubin"]


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_windows", [True, False])
def test_scatter(monkeypatch, state_dtype, with_windows):
    case = cases.scatter_case(
        MAKE,
        *((2, 64, 128), 256, [9], 2),
        state_dtype=state_dtype,
        with_windows=with_windows,
        transposed=with_windows,
    )
    module = scatter_checkpoints_triton
    assert compile_launch(
        monkeypatch, module, "_scatter_checkpoints_kernel", module.scatter_checkpoints_triton, case
    ).asm["cubin"]

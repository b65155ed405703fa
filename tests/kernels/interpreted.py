"""Run SGLang's Triton kernels on CPU tensors, by Triton's interpreter.

For scripts: ``TRITON_INTERPRET`` must be set before triton is first imported, so this must be the
first import of a process of its own.
"""

import contextlib
import json
import os
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton import language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

# Tuning measures time on a device: keep each kernel's first configuration instead.
_tuned_init = Autotuner.__init__


def _untuned_init(self, fn, arg_names, configs, *args, **kwargs):
    _tuned_init(self, fn, arg_names, configs[:1], *args, **kwargs)


Autotuner.__init__ = _untuned_init


# The interpreter holds bfloat16 numbers as integers, and would multiply these.
_dot = InterpreterBuilder.create_dot


def _widened(t: TensorHandle) -> TensorHandle:
    if t.dtype.scalar != tl.bfloat16:
        return t
    return TensorHandle((t.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _dot_widened(self, a, b, *args):
    return _dot(self, _widened(a), _widened(b), *args)


InterpreterBuilder.create_dot = _dot_widened


def rand(*shape):
    return torch.randn(*shape)


def distance(a: tuple, b: tuple) -> float:
    """Largest absolute difference of any two tensors."""
    return max((x.double() - y.double()).abs().max().item() for x, y in zip(a, b, strict=True))


def main(*checks: Callable[[], float]) -> None:
    """Print one line of JSON: name of the check -> what it returns."""
    # The launchers ask torch.cpu for a device context, which does not exist there.
    torch.cpu.device = lambda index: contextlib.nullcontext()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(json.dumps({check.__name__: check() for check in checks}))

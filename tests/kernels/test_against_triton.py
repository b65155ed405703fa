"""The torch operators against SGLang's own Triton kernels, without a GPU."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sglang")

MAMBA = ("compare_conv", "compare_conv_update", "compare_scan", "compare_step")
DELTA = (
    "compare_prefill",
    "compare_decode",
    "compare_gates",
    "compare_split",
    "compare_norm",
    "compare_shared_expert",
    "compare_kda_prefill",
    "compare_kda_prefill_with_lower_bound",
    "compare_kda_decode",
)
ROUNDED = ("compare_prefill_bfloat16", "compare_kda_long_prefill")


@functools.cache
def distances(script):
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("operator", MAMBA)
def test_mamba_operators_equal_the_triton_kernels(operator):
    assert distances("triton_mamba.py")[operator] < 1e-4


@pytest.mark.parametrize("operator", DELTA)
def test_delta_rule_operators_equal_the_triton_kernels(operator):
    assert distances("triton_delta.py")[operator] < 1e-5


@pytest.mark.parametrize("operator", ROUNDED)
def test_delta_rule_operators_are_close_to_kernels_that_round(operator):
    assert distances("triton_delta.py")[operator] < 0.05

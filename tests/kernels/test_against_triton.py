"""The torch operators against SGLang's own Triton kernels, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sglang")


@pytest.fixture(scope="module")
def distances():
    script = Path(__file__).with_name("triton_compare.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "operator", ["compare_conv", "compare_conv_update", "compare_scan", "compare_step"]
)
def test_equal_to_the_triton_kernel(distances, operator):
    assert distances[operator] < 1e-4

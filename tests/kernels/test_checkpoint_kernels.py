"""The checkpoint kernels, and those of SGLang that they build on, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def output_of(script):
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def errors():
    return output_of("triton_checkpoints.py")


# Up to 80 steps in float32, each rounded to 6e-8 of the largest value; they do not add up because
# the rules forget.
@pytest.mark.parametrize("kernel", ["mamba2", "gdn", "kda"])
def test_states_equal_the_recurrence(errors, kernel):
    assert errors[kernel] < 2e-6


def test_slots_hold_the_checkpoints_and_nothing_else_changes(errors):
    assert errors["scatter"] == 0


def test_slots_may_lie_behind_what_32_bits_can_count(errors):
    assert errors["large pool"] == 0


@pytest.fixture(scope="module")
def sglang_errors():
    pytest.importorskip("sglang")
    return output_of("sglang_states.py")


# Float32 as above. With 16-bit activations SGLang rounds B, weighted by decay and step, to their
# type: 5e-4 of each product in float16.
@pytest.mark.parametrize(
    "run, tolerance",
    [("mamba2 fresh", 2e-6), ("mamba2 resumed", 2e-6), ("mamba2 float16", 1e-3)],
)
def test_sglang_scan_tracks_states_at_any_position(sglang_errors, run, tolerance):
    assert sglang_errors[run]["tracked"] < tolerance


# Chunk states that were rounded the same way, and then exact steps.
@pytest.mark.parametrize(
    "run, tolerance",
    [("mamba2 fresh", 2e-6), ("mamba2 resumed", 2e-6), ("mamba2 float16", 1e-3)],
)
def test_advanced_chunk_states_equal_tracked_ones(sglang_errors, run, tolerance):
    assert sglang_errors[run]["advanced"] < tolerance


# Chunk kernels of both rules round products and states to the activations' type, here float16;
# KDA's multiplies in bfloat16 whatever that type is.
@pytest.mark.parametrize(
    "rule, tolerance", [("gdn", 1e-3), ("kda softplus", 4e-3), ("kda bounded", 1e-3)]
)
def test_advanced_chunk_states_are_those_of_a_prefill_cut_there(sglang_errors, rule, tolerance):
    """Both are this close to the recurrence: layouts, gates and norms are SGLang's."""
    assert sglang_errors[rule]["advanced"] < tolerance
    assert sglang_errors[rule]["cut"] < tolerance

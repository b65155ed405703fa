"""bench/gpu/exact_checkpoints.py, and that neither it nor the kernels need SGLang."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from bench.gpu import exact_checkpoints

ROOT = Path(__file__).parents[2]
PUBLIC = ("advance_gdn", "advance_kda", "advance_mamba2", "scatter_checkpoints")


def run(*command):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=ROOT
    )


def test_tiny_shapes_are_right_in_the_interpreter():
    done = run("bench/gpu/exact_checkpoints.py", "--interpret")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "22 of 22 cases ok" in done.stdout


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_one_wrong_case_fails_the_script(monkeypatch, capsys, error):
    monkeypatch.setattr(exact_checkpoints, "advance_errors", lambda *_: [("case", error)])
    monkeypatch.setattr(exact_checkpoints, "scatter_errors", lambda *_: [("other", 0)])
    monkeypatch.setattr(sys, "argv", ["exact_checkpoints.py", "--interpret"])
    assert exact_checkpoints.main() == 1
    assert "FAIL  case" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["exact_checkpoints.py"])
    assert exact_checkpoints.main() == 2
    assert capsys.readouterr().out == (
        "exact_checkpoints: no CUDA GPU; --interpret checks tiny shapes without one\n"
    )


def test_importing_the_kernels_needs_neither_sglang_nor_triton():
    modules = [
        f"{package}.{name}" for package in ("kernels", "sglang_hybrid.kernels") for name in PUBLIC
    ]
    done = run(
        "-c",
        "import importlib, sys; sys.modules['triton'] = sys.modules['sglang'] = None\n"
        f"for name in {modules}: importlib.import_module(name)",
    )
    assert done.returncode == 0, done.stderr[-3000:]

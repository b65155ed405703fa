"""When the CPU platform takes over, and how it fails when SGLang has changed."""

import pytest
import torch

pytest.importorskip("sglang")

from sglang_hybrid.cpu import patches, platform


def test_active_without_a_device(monkeypatch):
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert platform.activate() == "sglang_hybrid.cpu.platform.HybridCpuPlatform"


def test_a_cuda_device_wins(monkeypatch):
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert platform.activate() is None


def test_sglangs_own_cpu_engine_wins(monkeypatch):
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert platform.activate() is None


def test_every_patched_name_is_listed_with_a_reason():
    assert len(patches.PATCHED_NAMES) == len(patches.PATCHES)
    assert all(name and why for name, why in patches.PATCHED_NAMES)
    assert len(set(patches.PATCHED_NAMES)) == len(patches.PATCHES)


@pytest.mark.parametrize(
    ("module", "attribute"), [("torch", "Tensor.no_such_name"), ("sglang.no_such_module", "x")]
)
def test_a_missing_name_is_fatal_and_named(monkeypatch, module, attribute):
    gone = patches.Patch(module, attribute, None, "a test")
    monkeypatch.setattr(patches, "PATCHES", (gone,))
    with pytest.raises(RuntimeError, match=rf"{module}\.{attribute}.*SGLang \d"):
        patches.apply()


def test_what_models_are_built_with_is_rebound_early(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", torch.get_device_module)
    patches.apply_early()
    assert torch.get_device_module() is torch.cpu
    assert torch.get_device_module("cuda") is torch.cuda

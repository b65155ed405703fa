"""The SGLang names that the CPU platform rebinds, in one table.

SGLang chooses its Mamba operators by device at import; for a device that it does not know some
names stay unbound and others are Triton kernels. Each row gives such a name its torch version.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from sglang_hybrid.kernels import (
    causal_conv1d,
    extend_attention,
    ssd_scan,
    state_tracking,
    state_update,
)

_MIXER = "sglang.srt.layers.attention.mamba.mamba"
_BACKEND = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
_TORCH_NATIVE = "sglang.srt.layers.attention.torch_native_backend"


@dataclass(frozen=True)
class Patch:
    """One rebinding: ``module.attribute = replacement``.

    Attributes:
        module: module to import.
        attribute: name in it; a dot leads into a class.
        replacement: the new value.
        why: one phrase for people.
        bound: whether the name exists without us; if not, its absence is no error.
    """

    module: str
    attribute: str
    replacement: Any
    why: str
    bound: bool = True

    @property
    def dotted_name(self) -> str:
        return f"{self.module}.{self.attribute}"


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Pinning needs an accelerator; SGLang's decode preparation pins without asking."""
    return self


_UNBOUND = "left unbound by SGLang on an out-of-tree device"
_TRITON = "a Triton kernel"

PATCHES = (
    Patch(_MIXER, "causal_conv1d_fn", causal_conv1d.causal_conv1d_fn, _UNBOUND, bound=False),
    Patch(_MIXER, "causal_conv1d_fn_triton", causal_conv1d.causal_conv1d_fn, _UNBOUND, bound=False),
    Patch(
        _MIXER, "causal_conv1d_update", causal_conv1d.causal_conv1d_update, _UNBOUND, bound=False
    ),
    Patch(
        _MIXER,
        "causal_conv1d_update_triton",
        causal_conv1d.causal_conv1d_update,
        _UNBOUND,
        bound=False,
    ),
    Patch(_MIXER, "mamba_chunk_scan_combined", ssd_scan.mamba_chunk_scan_combined, _TRITON),
    Patch(_MIXER, "selective_state_update", state_update.selective_state_update, _TRITON),
    Patch(
        _BACKEND,
        "track_mamba_states_if_needed",
        state_tracking.track_mamba_states_if_needed,
        _TRITON,
    ),
    Patch(
        _BACKEND,
        "track_mamba_states_all_layers",
        state_tracking.track_mamba_states_all_layers,
        _TRITON,
    ),
    Patch(
        _TORCH_NATIVE,
        "TorchNativeAttnBackend._run_sdpa_forward_extend",
        extend_attention.run_sdpa_forward_extend,
        "computes the whole sequence's attention although a prefix is cached",
    ),
    Patch(
        "torch",
        "Tensor.pin_memory",
        _pin_memory,
        "ScheduleBatch.prepare_for_decode pins memory without asking the platform",
    ),
)

PATCHED_NAMES: tuple[tuple[str, str], ...] = tuple((p.dotted_name, p.why) for p in PATCHES)
"""(dotted name, why) of every name that `apply` rebinds."""


def _owner(patch: Patch) -> tuple[Any, str]:
    """The object that holds the patched name, and the name in it."""
    *path, name = patch.attribute.split(".")
    try:
        owner = importlib.import_module(patch.module)
        for part in path:
            owner = getattr(owner, part)
        if patch.bound:
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        import sglang

        raise RuntimeError(
            f"hybrid_cpu platform: {patch.dotted_name} does not exist in SGLang "
            f"{sglang.__version__} ({error}); this release of sglang-hybrid supports SGLang "
            "0.5.23"
        ) from error
    return owner, name


def check() -> None:
    """Import every patched module and look every name up, changing nothing.

    Raises:
        RuntimeError: naming the first missing name and the SGLang version.
    """
    for patch in PATCHES:
        _owner(patch)


def apply() -> None:
    """Rebind every name; a second call changes nothing.

    Raises:
        RuntimeError: as `check`, before anything is rebound.
    """
    owners = [_owner(patch) for patch in PATCHES]
    for (owner, name), patch in zip(owners, PATCHES, strict=True):
        setattr(owner, name, patch.replacement)

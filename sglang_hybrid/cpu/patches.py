"""The SGLang names that the CPU platform rebinds, in one table.

SGLang chooses its Mamba operators by device at import; for a device that it does not know some
names stay unbound and others are Triton kernels. Each row gives such a name its torch version.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sglang_hybrid.kernels import (
    causal_conv1d,
    extend_attention,
    gated_delta,
    gated_norm,
    host_transfer,
    kda,
    shared_expert,
    ssd_scan,
    state_tracking,
    state_update,
)

_MIXER = "sglang.srt.layers.attention.mamba.mamba"
_BACKEND = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
_TORCH_NATIVE = "sglang.srt.layers.attention.torch_native_backend"
_GDN_BACKEND = "sglang.srt.layers.attention.linear.gdn_backend"
_GDN_KERNELS = "sglang.srt.layers.attention.linear.kernels.gdn_triton"
_KDA_BACKEND = "sglang.srt.layers.attention.linear.kda_backend"
_KDA_KERNELS = "sglang.srt.layers.attention.linear.kernels.kda_triton"
_HOST_POOLS = "sglang.srt.mem_cache.pool_host"


@dataclass(frozen=True)
class Patch:
    """One rebinding: ``module.attribute = replacement``.

    Attributes:
        module: module to import.
        attribute: name in it; a dot leads into a class.
        replacement: the new value.
        why: one phrase for people.
        bound: whether the name exists without us; if not, its absence is no error.
        early: whether models need it while they are built, before their weights are loaded.
    """

    module: str
    attribute: str
    replacement: Any
    why: str
    bound: bool = True
    early: bool = False

    @property
    def dotted_name(self) -> str:
        return f"{self.module}.{self.attribute}"


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Pinning needs an accelerator; SGLang's decode preparation pins without asking."""
    return self


def _unpinned(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory of tensors whose ``pin_memory`` is ignored, as in `_pin_memory`."""

    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return factory(*args, **kwargs)

    return make


_default_device_module = torch.get_device_module


@functools.wraps(_default_device_module)  # torch's compiler unwraps it
def _get_device_module(device: Any = None) -> Any:
    """Without an argument torch names its CUDA module, whether or not there is a device."""
    return torch.cpu if device is None else _default_device_module(device)


def _latent_attention_handler(attention_backend: str) -> Callable[[Any, Any], Any]:
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    return lambda attention, forward_batch: AttnForwardMethod.MLA


def _host_register(buffer: torch.Tensor, registration_granularity_bytes: int | None = None) -> None:
    """Host memory is registered with a CUDA device, so that it can copy to and from it."""


_UNBOUND = "left unbound by SGLang on an out-of-tree device"
_TRITON = "a Triton kernel"

HOST_TIER = (
    Patch(
        f"{_HOST_POOLS}.common",
        "_cuda_host_register",
        _host_register,
        "HiCache registers its host pools with the CUDA device",
    ),
    Patch(
        f"{_HOST_POOLS}.base",
        "HICACHE_HOST_MEMORY_RESERVE_BYTES",
        0,
        "HiCache would leave 10 GiB of the machine's memory free",
    ),
    *(
        Patch(f"{_HOST_POOLS}.{pool}", name, getattr(host_transfer, name), _UNBOUND, bound=False)
        for pool in ("mha", "mla", "mamba")
        for name in ("transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf")
    ),
)
"""What HiCache needs, with ``--hicache-io-backend direct`` and a page-first layout.

Events and streams need nothing: SGLang takes those of `torch.cpu`, which do nothing, and a
copy has run when it returns.
"""

PATCHES = (
    *HOST_TIER,
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
    Patch(_GDN_BACKEND, "causal_conv1d_fn", causal_conv1d.causal_conv1d_fn, _TRITON),
    Patch(_GDN_BACKEND, "causal_conv1d_update", causal_conv1d.causal_conv1d_update, _TRITON),
    Patch(_GDN_BACKEND, "fused_gdn_gating", gated_delta.fused_gdn_gating, _TRITON),
    Patch(_GDN_KERNELS, "chunk_gated_delta_rule", gated_delta.chunk_gated_delta_rule, _TRITON),
    Patch(
        _GDN_KERNELS,
        "fused_recurrent_gated_delta_rule_packed_decode",
        gated_delta.fused_recurrent_gated_delta_rule_packed_decode,
        _TRITON,
    ),
    Patch(_KDA_BACKEND, "causal_conv1d_fn", causal_conv1d.causal_conv1d_fn, _TRITON),
    Patch(_KDA_BACKEND, "causal_conv1d_update", causal_conv1d.causal_conv1d_update, _TRITON),
    Patch(_KDA_KERNELS, "chunk_kda", kda.chunk_kda, _TRITON),
    Patch(
        _KDA_KERNELS,
        "fused_recurrent_kda_packed_decode",
        kda.fused_recurrent_kda_packed_decode,
        _TRITON,
    ),
    Patch(
        "sglang.srt.models.qwen3_next",
        "fused_qkvzba_split_reshape_cat",
        gated_delta.fused_qkvzba_split_reshape_cat,
        _TRITON,
    ),
    Patch(
        "sglang.kernels.ops.attention.fla.fused_norm_gate",
        "rms_norm_gated",
        gated_norm.rms_norm_gated,
        _TRITON,
    ),
    Patch(
        "sglang.srt.models.qwen2_moe",
        "fused_gate_sigmoid_mul_add",
        shared_expert.fused_gate_sigmoid_mul_add,
        _TRITON,
    ),
    Patch(
        "sglang.srt.models.deepseek_common.attention_backend_handler",
        "AttentionBackendRegistry.get_handler",
        staticmethod(_latent_attention_handler),
        "MLA without a prefix would bypass the pool, from which torch_native reads keys and values",
    ),
    Patch(
        "torch",
        "get_device_module",
        _get_device_module,
        "Qwen3-Next builds a norm on the device of torch's default module",
        early=True,
    ),
    Patch(
        "torch",
        "Tensor.pin_memory",
        _pin_memory,
        "ScheduleBatch.prepare_for_decode pins memory without asking the platform",
        early=True,
    ),
    *(
        Patch(
            "torch",
            factory.__name__,
            _unpinned(factory),
            "LoRA layers pin memory without asking the platform",
            early=True,
        )
        for factory in (torch.tensor, torch.zeros)
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


def apply_early() -> None:
    """Rebind what models need while they are built.

    Raises:
        RuntimeError: as `check`.
    """
    _bind([patch for patch in PATCHES if patch.early])


def apply_host_tier() -> None:
    """Rebind what HiCache needs, for a cache without a server.

    Raises:
        RuntimeError: as `check`.
    """
    _bind(HOST_TIER)


def apply() -> None:
    """Rebind every name; a second call changes nothing.

    Raises:
        RuntimeError: as `check`, before anything is rebound.
    """
    _bind(PATCHES)


def _bind(patches: Sequence[Patch]) -> None:
    owners = [_owner(patch) for patch in patches]
    for (owner, name), patch in zip(owners, patches, strict=True):
        setattr(owner, name, patch.replacement)

"""SGLang's out-of-tree platform for machines without an accelerator.

It lets SGLang's own front end, scheduler, pools and radix tree serve hybrid models on a plain
CPU, with the torch operators of `sglang_hybrid.kernels`. It is meant for development and tests.
SGLang's built-in CPU engine (``SGLANG_USE_CPU_ENGINE=1``) is another thing: it needs
``sgl_kernel`` and does not run Mamba-2.
"""

import logging
import os

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

logger = logging.getLogger(__name__)

_DEFAULT_POOL_TOKENS = 262144
_DEFAULT_POOL_STATES = 256
_DEFAULT_RUNNING = 16


def activate() -> str | None:
    """Entry point of group ``sglang.srt.platforms``.

    Returns:
        The qualified name of the platform class if there is no CUDA (or ROCm) device and SGLang's
        own CPU engine was not asked for, else None.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1" or torch.cuda.is_available():
        return None
    return f"{HybridCpuPlatform.__module__}.{HybridCpuPlatform.__qualname__}"


class HybridCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Plain torch on the CPU, presented to SGLang as an out-of-tree device.

    Out of tree, rather than "cpu", because every in-tree CPU path leads to ``sgl_kernel``.
    """

    _enum = PlatformEnum.OOT

    def get_device(self, device_id: int = 0) -> str:
        """The device as a string: SGLang splits it at ':' although the mixin returns a
        ``torch.device``."""
        return "cpu"

    def is_pin_memory_available(self, device=None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def apply_server_args_defaults(self, server_args) -> None:
        """Choose what a CPU can run wherever the user left the choice open."""
        logger.warning(
            "hybrid_cpu platform: torch reference operators on the CPU, for development and "
            "tests only."
        )
        if server_args.dtype == "auto" and "SGLANG_MAMBA_CONV_DTYPE" not in os.environ:
            # Products in bfloat16 are an order of magnitude slower on CPUs without such
            # instructions, and their noise hides small errors. SGLang keeps convolution
            # states in the dtype of this variable whatever the model's; children inherit it.
            server_args.dtype = "float32"
            os.environ["SGLANG_MAMBA_CONV_DTYPE"] = "float32"
        if server_args.sampling_backend is None:
            server_args.sampling_backend = "pytorch"
        server_args.disable_cuda_graph = True
        if server_args.enable_hierarchical_cache:
            # The kernels of the other backend are CUDA's, and of the layouts this is direct's.
            server_args.hicache_io_backend = "direct"
            server_args.hicache_mem_layout = "page_first_direct"
        # An idle scheduler otherwise spins, and takes a core from whoever shares the machine.
        server_args.sleep_on_idle = True
        # With --dtype bfloat16 a few percent of the greedy choices would be exact ties.
        server_args.enable_fp32_lm_head = True
        # SGLang would otherwise turn most of the machine's memory into pools, and zero it.
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = _DEFAULT_POOL_TOKENS
        if server_args.max_mamba_cache_size is None:
            server_args.max_mamba_cache_size = _DEFAULT_POOL_STATES
        if server_args.max_running_requests is None:
            server_args.max_running_requests = _DEFAULT_RUNNING

    def init_backend(self) -> None:
        """Called while SGLang's model runner is being imported: too early to import, let alone
        patch, the modules that use it. See `post_load_model`."""
        from sglang_hybrid.cpu.patches import apply_early

        apply_early()

    def post_load_model(self, model: torch.nn.Module) -> None:
        """Bind the torch operators: all modules are imported and nothing has run yet."""
        from sglang_hybrid.cpu.patches import apply

        apply()
        if "OMP_NUM_THREADS" not in os.environ:
            # Small operators gain nothing from more threads, and threads that wait for each
            # other on busy cores cost a multiple; tokenizer and HTTP server need cores too.
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))

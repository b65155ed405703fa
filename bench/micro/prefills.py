"""Prefill forwards of a real scheduler's worker, without a server.

The scheduler is built as in a server, with `--cache hybrid-marconi` and the strategy
``extra_buffer``, but its event loop never runs: batches are built here, from random prompts
of which nothing is cached.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import pkgutil
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from sglang.srt.distributed import parallel_state
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, prepare_server_args
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_hybrid.adapter import hooks
from sglang_hybrid.core.checkpoints import Kind

FLAGS = (
    *(
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--mem-fraction-static",
        "0.5",
        "--skip-tokenizer-init",
    ),
    *("--cache", "hybrid-marconi", "--cache-config", json.dumps({"policy": "utility"})),
    *("--mamba-radix-cache-strategy", "extra_buffer", "--chunked-prefill-size", "16384"),
    *("--max-mamba-cache-size", "512", "--max-total-tokens", "32768"),
    *("--max-running-requests", "64", "--log-level", "error"),
)


class Prefills:
    """One loaded model; SGLang's configuration is global, so one at a time.

    Attributes:
        cache: its `HybridMarconiCache`, which saves states at exactly the wanted tokens.
        hooks: those by which it does.
    """

    def __init__(self, model: Path) -> None:
        os.environ["SGLANG_MAMBA_CONV_DTYPE"] = "float32"
        load_plugins()
        args = prepare_server_args(["--model-path", str(model), *FLAGS])
        args.resolve_once()
        args.check_server_args()
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        self._scheduler = Scheduler(args, PortArgs.init_new(args))
        # More threads than one would wait for each other on busy cores, and only one thread's
        # time can be told from that of other jobs.
        torch.set_num_threads(1)
        _keep_freed_memory()
        self.cache = self._scheduler.tree_cache
        assert self.cache.branch_checkpoint == "exact", self.cache.branch_checkpoint
        family = self.cache.saver._family.name
        self.hooks = (*hooks.SAVING, *hooks.LAYERS[family])
        self._ids = itertools.count()

    def close(self) -> None:
        """Let another model be loaded."""
        self._scheduler.release_host_resources()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        reset_context()

    def batch(
        self, prompts: Sequence[Sequence[int]], depths: Sequence[Sequence[int]]
    ) -> ScheduleBatch:
        """A batch, admitted but not prepared, with checkpoints wanted at ``depths``."""
        scheduler = self._scheduler
        reqs = [self._request(*each) for each in zip(prompts, depths, strict=True)]
        return ScheduleBatch.init_new(
            reqs=reqs,
            req_to_token_pool=scheduler.req_to_token_pool,
            token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
            tree_cache=self.cache,
            model_config=scheduler.model_config,
            enable_overlap=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )

    def _request(self, prompt: Sequence[int], depths: Sequence[int]) -> Req:
        req = Req(
            rid=f"r{next(self._ids)}",
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
            vocab_size=self._scheduler.model_config.vocab_size,
        )
        req.init_next_round_input(self.cache)
        req.lock = self.cache.lock(req.last_node)
        req.extend_end = len(prompt)
        req.hybrid_wanted = tuple((depth, Kind.BRANCH) for depth in sorted(depths))
        return req

    def forward(self, batch: ScheduleBatch) -> None:
        """Run a prepared batch: what the scheduler has its worker do."""
        batch.input_ids, batch.prefill_input_ids_cpu = batch.prefill_input_ids_cpu, None
        self._scheduler.tp_worker.forward_batch_generation(batch)

    def release(self, batch: ScheduleBatch) -> None:
        """Give back all that the requests hold; nothing enters the tree."""
        for req in batch.reqs:
            req.finished_reason = FINISH_ABORT("measured")
            release_kv_cache(req, self.cache, checkpoint=False)

    @contextlib.contextmanager
    def ends_stay(self) -> Iterator[None]:
        """Within it, requests keep no copy of the state at the end, as under ``no_buffer``."""
        self.cache.enable_mamba_extra_buffer = False
        try:
            yield
        finally:
            self.cache.enable_mamba_extra_buffer = True

    @contextlib.contextmanager
    def unhooked(self) -> Iterator[None]:
        """Within it, SGLang is as if the hooks had never been installed."""
        installed = []
        for hook in self.hooks:
            path, name = hook.target.rsplit(".", 1)
            owner = pkgutil.resolve_name(path)
            wrapper = vars(owner)[name]
            original = (
                classmethod(wrapper.__func__.__wrapped__)
                if isinstance(wrapper, classmethod)
                else wrapper.__wrapped__
            )
            installed.append((owner, name, wrapper))
            setattr(owner, name, original)
        try:
            yield
        finally:
            for owner, name, wrapper in reversed(installed):
                setattr(owner, name, wrapper)


def _keep_freed_memory() -> None:
    """Have glibc reuse large blocks: page faults of temporaries would be most of the noise."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)

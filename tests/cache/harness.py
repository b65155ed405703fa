"""A real cache over real pools on the CPU, driven as the scheduler drives it.

No server and no model: a "request" here allocates slots, "computes" its tokens,
and calls the cache at the same points as SGLang's scheduler. What a state slot
holds is the depth and a digest of the tokens it stands for, so that a state at
the wrong place is seen.
"""

from __future__ import annotations

import itertools
from array import array

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.runtime_context import publish, reset_context
from sglang.srt.server_args import ServerArgs

from sglang_hybrid.adapter.cache import HybridMarconiCache
from sglang_hybrid.config import CacheConfig
from sglang_hybrid.core.costs import ModelCosts

STATE_LAYERS, KV_LAYERS = [0, 2, 3], [1]
# Every layer kind contributes; one state is worth some hundred tokens of KV.
COSTS = ModelCosts(kv_bytes_per_token=64, state_bytes=6400, flops_linear=1e6, flops_quadratic=1e2)


def publish_server_args(page_size: int, **kwargs) -> ServerArgs:
    reset_context()
    args = ServerArgs(model_path="dummy", device="cpu", page_size=page_size, **kwargs)
    args._mamba_cache_chunk_size = max(64, page_size)  # else it asks the hub for "dummy"
    publish(args, role="scheduler")
    return args


def make_pools(
    slots: int, tokens: int, rows: int, extra_buffer: bool, page_size: int, context: int = 1 << 14
):
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=16,
        n_groups=1,
        num_heads=2,
        head_dim=8,
        state_size=4,
        conv_kernel=4,
    )
    req_pool = HybridReqToTokenPool(
        size=rows,
        mamba_size=slots,
        mamba_spec_state_size=rows,
        max_context_len=context,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=STATE_LAYERS),
        mamba_layer_ids=STATE_LAYERS,
        enable_mamba_extra_buffer=extra_buffer,
    )
    kv_pool = HybridLinearKVPool(
        size=tokens,
        dtype=torch.bfloat16,
        page_size=page_size,
        head_num=1,
        head_dim=2,
        full_attention_layer_ids=KV_LAYERS,
        device="cpu",
        enable_memory_saver=False,
        mamba_pool=req_pool.mamba_pool,
    )
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(
            tokens, dtype=torch.bfloat16, device="cpu", kvcache=kv_pool, need_sort=False
        )
    else:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        allocator = PagedTokenToKVPoolAllocator(
            tokens,
            page_size=page_size,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=kv_pool,
            need_sort=False,
        )
    return req_pool, allocator


def make_cache(
    config: dict | None = None,
    *,
    slots: int = 64,
    tokens: int = 1 << 14,
    rows: int = 8,
    extra_buffer: bool = False,
    page_size: int = 1,
    costs: ModelCosts = COSTS,
    cache_class=HybridMarconiCache,
    family=None,
    context: int = 1 << 14,
    kv_events: bool = False,
    **server_args,
):
    publish_server_args(page_size, **server_args)
    req_pool, allocator = make_pools(slots, tokens, rows, extra_buffer, page_size, context)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=req_pool,
        token_to_kv_pool_allocator=allocator,
        page_size=page_size,
        enable_mamba_extra_buffer=extra_buffer,
        enable_kv_cache_events=kv_events,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
    )
    if cache_class is HybridMarconiCache:
        return cache_class(params, CacheConfig.parse(config or {}), costs, family)
    params.tree_core_backend = "python"
    return cache_class(params)


class Driver:
    """Serves requests on a ``no_buffer`` cache, one after another or overlapping."""

    def __init__(self, cache: HybridMarconiCache, chunk: int = 1 << 14):
        self.cache = cache
        self.chunk = chunk
        self.custom_params = None  # of the sampling parameters of requests from now on
        self.of_requests = {}  # further arguments of requests from now on
        self._ids = itertools.count()

    def wait(self, prompt, extra_key=None):
        """Match ``prompt``; returns the request, which waits for admission."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        req = Req(
            rid=f"r{next(self._ids)}",
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=SamplingParams(
                max_new_tokens=1 << 10, custom_params=self.custom_params
            ),
            extra_key=extra_key,
            **self.of_requests,
        )
        req.init_next_round_input(self.cache)
        return req

    def admit(self, prompt, extra_key=None):
        """Match and admit ``prompt``; returns the request."""
        req = self.wait(prompt, extra_key)
        self._admit(req)
        req.hit = req.prefix_len
        return req

    def start(self, prompt, extra_key=None):
        """Match, admit and prefill ``prompt``; returns the running request."""
        req = self.admit(prompt, extra_key)
        while True:
            end = min(req.prefix_len + self.chunk, len(req.full_untruncated_fill_ids))
            branch = self.cache.plan_chunk(req)
            if branch is not None and req.prefix_len < branch < end:
                end = branch
            self._extend(req, end)
            self.cache.checkpoint(req, up_to=end)
            req.prefix_len = end
            self.check()
            if end == len(req.full_untruncated_fill_ids):
                return req

    def finish(self, req, output):
        """Decode ``output`` (its last token has no KV yet) and release the request."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        end = len(req.full_untruncated_fill_ids) + len(output) - 1
        req.output_ids.extend(output)
        req.refresh_fill_ids()
        self._extend(req, end)
        req.finished_reason = FINISH_LENGTH(length=len(output))
        req.kv.kv_committed_len = end
        release_kv_cache(req, self.cache, checkpoint=True)
        self.check()

    def abort(self, req):
        """Release a running request without a checkpoint, as after an abort or a retraction."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT
        from sglang.srt.mem_cache.common import release_kv_cache

        req.finished_reason = FINISH_ABORT("aborted")
        release_kv_cache(req, self.cache, checkpoint=False)
        self.check()

    def has_room(self, tokens: int) -> bool:
        """Whether the scheduler would admit a request of so many tokens."""
        allocator = self.cache.token_to_kv_pool_allocator
        kv = allocator.available_size() + self.cache.full_evictable_size()
        # A hit of the request may be locked, which takes it out of both.
        return kv >= 2 * tokens and self.cache.free_state_slots() >= 2

    def serve(self, prompt, output=(7, 8, 9), extra_key=None) -> int:
        """One whole request; returns the tokens it hit."""
        req = self.start(prompt, extra_key)
        self.finish(req, list(output))
        return req.hit

    def check(self):
        """Raise AssertionError unless slots, tree and indexes agree."""
        self.cache.check_integrity()

    # ---- what the scheduler and the forward do ----

    def _admit(self, req):
        cache = self.cache
        from sglang.srt.mem_cache.allocation import alloc_req_slots

        prefix = cache.prefix_device_indices(req) if req.prefix_len else None
        req.lock = cache.lock(req.last_node)
        self._tell_admitted(req)
        alloc_req_slots(cache.req_to_token_pool, [req], cache)
        req.kv.cache_protected_len = req.prefix_len
        if prefix is not None:
            cache.req_to_token_pool.write((req.kv.req_pool_idx, slice(0, req.prefix_len)), prefix)
        if req.kv.mamba_cow_src_index is not None:
            pool = cache.req_to_token_pool.mamba_pool
            pool.copy_from(req.kv.mamba_cow_src_index, req.kv.mamba_pool_idx.unsqueeze(0))
            assert self.state_of(req) == signature(req.full_untruncated_fill_ids[: req.prefix_len])
            req.kv.mamba_cow_src_index = None

    def _tell_admitted(self, req):
        self.cache.plan_chunk(req)
        self.cache.on_admitted(req)

    def _extend(self, req, end):
        cache, start = self.cache, max(req.kv.kv_allocated_len, req.prefix_len)
        allocator = cache.token_to_kv_pool_allocator
        if end > start:
            short = end - start - allocator.available_size()
            if short > 0:
                cache.evict_for_alloc(EvictParams(num_tokens=short))
            slots = allocator.alloc(end - start)
            assert slots is not None, "out of KV"
            cache.req_to_token_pool.write((req.kv.req_pool_idx, slice(start, end)), slots)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
        req.extend_end = end
        self._write_state(req, signature(req.full_untruncated_fill_ids[:end]))

    def _write_state(self, req, value):
        temporal = self.cache.req_to_token_pool.mamba_pool.mamba_cache.temporal
        temporal[:, req.kv.mamba_pool_idx].copy_(
            torch.tensor(value, dtype=temporal.dtype).expand_as(temporal[:, req.kv.mamba_pool_idx])
        )

    def state_of(self, req):
        temporal = self.cache.req_to_token_pool.mamba_pool.mamba_cache.temporal
        return float(temporal[0, req.kv.mamba_pool_idx].flatten()[0])


def signature(tokens) -> float:
    """A number, exact in bfloat16, that stands for a token sequence."""
    digest = 0
    for token in tokens:
        digest = (digest * 31 + token + 1) % 251
    return float(digest)


def match_length(cache, tokens, extra_key=None) -> int:
    """Hit of ``tokens`` without a request (does not count as a use)."""
    params = MatchPrefixParams(key=RadixKey(array("q", tokens), extra_key))
    return cache.match_prefix(params).device_prefix_len

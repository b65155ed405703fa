"""A real cache over real pools on the CPU, driven as the scheduler drives it.

No server and no model: a "request" here allocates slots, "computes" its tokens,
and calls the cache at the same points as SGLang's scheduler (`driver`). What a state slot
holds is a digest of the tokens it stands for (`contents`), so that a state at the wrong
place is seen.
"""

from __future__ import annotations

import math
from array import array

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_memory_pool import init_unified_mamba_pools
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


def _cache_params():
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=16,
        n_groups=1,
        num_heads=2,
        head_dim=8,
        state_size=4,
        conv_kernel=4,
    )
    return Mamba2CacheParams(shape=shape, layers=STATE_LAYERS)


def make_unified_pools(
    slots: int,
    tokens: int,
    rows: int,
    extra_buffer: bool,
    page_size: int,
    lazy: bool = False,
    overlap: bool = True,
    context: int = 1 << 14,
    lazy_compaction: bool = True,
):
    """SGLang's pools of ``--enable-unified-memory``: one buffer for states and tokens.

    Args:
        slots, tokens: what the buffer has room for at the same time; how many there are of
            each is decided as they are asked for.
        lazy_compaction: SGLang's default; else rows move as soon as one is freed.
    """
    bundle = init_unified_mamba_pools(
        device="cpu",
        kv_cache_dtype=torch.bfloat16,
        head_num=1,
        head_dim=8,  # rows of 16 bytes, the least that SGLang aligns to
        page_size=page_size,
        start_layer=0,
        end_layer=4,
        is_draft_worker=False,
        use_mla_backend=False,
        mamba_layer_ids=STATE_LAYERS,
        full_attention_layer_ids=KV_LAYERS,
        mamba2_cache_params=_cache_params(),
        model_context_len=context,
        extra_max_context_len=4,
        max_total_num_tokens=tokens + page_size,  # the first page takes padding
        max_mamba_cache_size=slots + 1,
        max_num_reqs=rows,
        enable_memory_saver=False,
        enable_mamba_extra_buffer=extra_buffer,
        enable_mamba_extra_buffer_lazy=lazy,
        speculative_num_draft_tokens=None,
        disable_overlap_schedule=not overlap,
        need_sort=False,
        lazy_compaction=lazy_compaction,
    )
    return bundle.req_to_token_pool, bundle.token_to_kv_pool_allocator


def make_pools(
    slots: int,
    tokens: int,
    rows: int,
    extra_buffer: bool,
    page_size: int,
    lazy: bool = False,
    overlap: bool = True,
    context: int = 1 << 14,
):
    req_pool = HybridReqToTokenPool(
        size=rows,
        mamba_size=slots,
        mamba_spec_state_size=rows,
        max_context_len=context,
        device="cpu",
        enable_memory_saver=False,
        cache_params=_cache_params(),
        mamba_layer_ids=STATE_LAYERS,
        enable_mamba_extra_buffer=extra_buffer,
        enable_mamba_extra_buffer_lazy=lazy,
        enable_overlap_schedule=overlap,
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
    lazy: bool = False,
    overlap: bool = True,
    costs: ModelCosts = COSTS,
    cache_class=HybridMarconiCache,
    family=None,
    kv_events: bool = False,
    context: int = 1 << 14,
    tree_core: str = "python",
    unified: bool = False,
    lazy_compaction: bool = True,
    **server_args,
):
    """A cache over pools of its own.

    Args:
        config: keys of ``--cache-config``; without a policy it is `utility`, whose victims are
            not drawn at random, and nothing tunes it.
        unified, lazy_compaction: whether states and tokens share memory, and when rows move.
        extra_buffer, lazy: the strategy; ``no_buffer`` if neither.
        overlap: whether the overlap schedule is on, which ``no_buffer`` never has.
        tree_core: of SGLang's own cache; ours has its Python core.
        server_args: further arguments of SGLang's server.
    """
    strategy = "extra_buffer_lazy" if lazy else "extra_buffer" if extra_buffer else "no_buffer"
    args = publish_server_args(
        page_size,
        mamba_radix_cache_strategy=strategy,
        disable_overlap_schedule=not (overlap and extra_buffer),
        enable_unified_memory=unified,
        **{"mamba_track_interval": math.lcm(64, page_size), **server_args},
    )
    sizes = (slots, tokens, rows, extra_buffer, page_size, lazy, overlap and extra_buffer, context)
    if unified:
        req_pool, allocator = make_unified_pools(*sizes, lazy_compaction)
    else:
        req_pool, allocator = make_pools(*sizes)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=req_pool,
        token_to_kv_pool_allocator=allocator,
        page_size=page_size,
        enable_mamba_extra_buffer=extra_buffer,
        enable_mamba_extra_buffer_lazy=lazy,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        enable_kv_cache_events=kv_events,
    )
    if cache_class is HybridMarconiCache:
        cache = cache_class(
            params, CacheConfig.parse({"policy": "utility", **(config or {})}), costs, family
        )
    else:
        params.tree_core_backend = tree_core
        cache = cache_class(params)
    if args.enable_hierarchical_cache:
        cache.init_hicache(args, params)
    return cache


def match_length(cache, tokens, extra_key=None) -> int:
    """Hit of ``tokens`` without a request (does not count as a use)."""
    params = MatchPrefixParams(key=RadixKey(array("q", tokens), extra_key))
    return cache.match_prefix(params).device_prefix_len

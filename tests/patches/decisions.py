"""What a cache decides over random operations, as JSON on standard output.

    python decisions.py plugin      # this project's cache, on the SGLang that is imported
    python decisions.py native      # SGLang's own policies `marconi` and `utility` (patched tree)
    python decisions.py stock       # SGLang's default order

Prefixes, conversations and one-shots over pools so small that states and KV are evicted all
the time. Both sides get the same calls of the cache; what is compared is which prefixes hit
and which states went, in order.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from array import array
from types import SimpleNamespace

import torch
from harness import COSTS, make_pools, publish_server_args
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

OPERATIONS = 700
SIZES = ((10, 1200), (24, 900))  # state slots and tokens
# Name, then policy and alpha of the plugin, policy and alpha of SGLang. By recency alone
# both order by `marconi` with alpha 0; SGLang's `lru` is the component's own.
POLICIES = {
    "lru": ("lru", None, "marconi", 0.0),
    "marconi, alpha 0.7": ("marconi", 0.7, "marconi", 0.7),
    "marconi, alpha 4": ("marconi", 4.0, "marconi", 4.0),
    "utility, alpha 0.5": ("utility", 0.5, "utility", 0.5),
    "utility, alpha 2": ("utility", 2.0, "utility", 2.0),
}


class Plugin:
    """The plugin's cache and how it hears of what its requests tell it."""

    def __init__(self, params: CacheInitParams, policy: str, alpha: float | None) -> None:
        from sglang_hybrid.adapter.cache import HybridMarconiCache
        from sglang_hybrid.config import CacheConfig

        config = CacheConfig.parse({"policy": policy, "alpha": alpha, "strict": True})
        self.cache = HybridMarconiCache(params, config, COSTS)
        self.view = self.cache.view

    def checkpoint(self, node):
        return self.view.checkpoints.get(node.id), self.view.tree

    def watch(self, gone) -> None:
        detach = self.view.detach
        self.view.detach = lambda node: (gone(node), detach(node))

    def admit(self, node, hit: int) -> None:
        self.view.tick()
        self.view.consume(node)

    def insert(self, params: InsertParams, is_branch: bool):
        from sglang_hybrid.adapter.request_checkpoints import Pending
        from sglang_hybrid.core.checkpoints import Kind

        kind = Kind.BRANCH if is_branch else Kind.DECODE_END
        component = self.cache.components[ComponentType.MAMBA]
        component._pending = [Pending(len(params.key), kind)]
        return self.cache.insert(params)


class Native:
    """SGLang's cache with a scored order."""

    def __init__(self, params: CacheInitParams, policy: str, alpha: float) -> None:
        params.eviction_policy = policy
        params.eviction_policy_config = {"alpha": alpha}
        params.state_costs = COSTS
        self.cache = UnifiedRadixCache(params)
        self.order = self.cache.tree_core.state_order

    def checkpoint(self, node):
        return self.order.tree.checkpoints.get(node.id), self.order.tree

    def watch(self, gone) -> None:
        detach = self.order.on_detach
        self.order.on_detach = lambda node: (gone(node), detach(node))

    def admit(self, node, hit: int) -> None:
        self.cache.note_admission(SimpleNamespace(prefix_len=hit, last_node=node.id))

    def insert(self, params: InsertParams, is_branch: bool):
        params.mamba_is_branch = is_branch
        return self.cache.insert(params)


class Stock:
    """SGLang's cache with its default order."""

    def __init__(self, params: CacheInitParams, *_) -> None:
        params.tree_core_backend = "python"
        self.cache = UnifiedRadixCache(params)

    def checkpoint(self, node):
        held = node.component_data[ComponentType.MAMBA].value is not None
        tree = SimpleNamespace(live_children=lambda node: len(node.children))
        return (SimpleNamespace(depth=len(path_of(node))) if held else None), tree

    def watch(self, gone) -> None:
        component = self.cache.components[ComponentType.MAMBA]
        evict = component.evict_component
        component.evict_component = lambda node, *args, **kwargs: (
            gone(node),
            evict(node, *args, **kwargs),
        )[1]

    def admit(self, node, hit: int) -> None:
        pass

    def insert(self, params: InsertParams, is_branch: bool):
        return self.cache.insert(params)


SIDES = {"plugin": Plugin, "native": Native, "stock": Stock}


def path_of(node) -> array:
    tokens = array("q")
    while node.parent is not None:
        tokens = node.key.token_ids[: len(node.key)] + tokens
        node = node.parent
    return tokens


def make_side(side: str, slots: int, tokens: int, policy: str, alpha: float | None):
    publish_server_args(1, mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True)
    req_pool, allocator = make_pools(slots, tokens, 2, extra_buffer=False, page_size=1)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=req_pool,
        token_to_kv_pool_allocator=allocator,
        page_size=1,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
    )
    return SIDES[side](params, policy, alpha)


def workload(seed: int):
    """Sequences of tokens: growing conversations, shared prefixes, repeats, one-shots."""
    rng = random.Random(seed)
    fresh = iter(range(10_000, 10_000_000))
    shared = [[next(fresh) for _ in range(rng.choice([30, 110, 250]))] for _ in range(4)]
    talks: list[list[int]] = []
    while True:
        choice = rng.random()
        new = [next(fresh) for _ in range(rng.randrange(1, 60))]
        if choice < 0.4 and talks:
            tokens = talks.pop(rng.randrange(max(0, len(talks) - 6), len(talks))) + new
        elif choice < 0.75:
            tokens = rng.choice(shared) + [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
            tokens += new if rng.random() < 0.6 else []
        else:
            tokens = new * rng.choice([1, 1, 4])
        tokens = tokens[:400]
        if rng.random() < 0.8:
            talks.append(tokens)
        yield tokens


def decisions(side: str, slots: int, size: int, policy: str, alpha: float | None) -> dict:
    """Hits, states that went, and what the pools hold after each operation."""
    it = make_side(side, slots, size, policy, alpha)
    cache, rng = it.cache, random.Random(slots)
    states = cache.req_to_token_pool.mamba_allocator
    kv = cache.token_to_kv_pool_allocator
    hits, gone, sizes, locks, sequences = [], [], [], [], workload(size)

    def went(node) -> None:
        checkpoint, tree = it.checkpoint(node)
        if checkpoint is not None:
            digest = zlib.crc32(path_of(node).tobytes())
            gone.append([len(hits), checkpoint.depth, tree.live_children(node) > 0, digest])

    it.watch(went)

    def keep(tokens: list[int], is_branch: bool) -> None:
        """Insert ``tokens`` with a state at their end, if there is room."""
        result = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
        hit = result.device_prefix_len
        lock = cache.lock(result.last_device_node)
        short = len(tokens) - hit - kv.available_size()
        if short > 0:
            cache.evict(EvictParams(num_tokens=short))
        if not states.available_size():
            cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        if states.available_size() and kv.available_size() >= len(tokens) - hit:
            slot = states.alloc(1)
            value = kv.alloc(len(tokens) - hit)
            if hit:
                value = torch.cat([cache.path_device_indices(result.last_device_node), value])
            inserted = it.insert(
                InsertParams(
                    key=RadixKey(array("q", tokens)),
                    value=value,
                    mamba_value=slot,
                    prev_prefix_len=hit,
                ),
                is_branch,
            )
            if inserted.mamba_exist:
                states.free(slot)
        cache.unlock(lock)

    for i in range(OPERATIONS):
        tokens = next(sequences)
        result = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
        hit = result.device_prefix_len
        hits.append(hit)
        node = cache.tree_core.node_by_id(result.last_device_node)
        it.admit(node, hit)
        if hit and rng.random() < 0.3:
            locks.append(cache.lock(node.id))
        if rng.random() < 0.25 and len(tokens) > 20:
            keep(tokens[: rng.randrange(10, len(tokens))], is_branch=True)
        keep(tokens, is_branch=False)
        if locks and (len(locks) > 2 or rng.random() < 0.4):
            cache.unlock(locks.pop(rng.randrange(len(locks))))
        if rng.random() < 0.05:
            cache.evict(EvictParams(num_tokens=rng.randrange(1, 150), mamba_num=rng.randrange(3)))
        sizes.append([cache.full_evictable_size(), cache.mamba_evictable_size()])
        if i % 100 == 0:
            cache.sanity_check()
    return {"hits": hits, "gone": gone, "sizes": sizes}


def main(side: str) -> None:
    found = {}
    for slots, size in SIZES:
        for name, (policy, alpha, native_policy, native_alpha) in POLICIES.items():
            if side == "native":
                policy, alpha = native_policy, native_alpha
            found[f"{name}, {slots} states"] = decisions(side, slots, size, policy, alpha)
            if side == "stock":
                break
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])

"""Eviction with 10,000 states in the tree, beside SGLang's Python core.

    python -m pytest bench/test_eviction_speed.py -s

Both caches live in one process and take turns, so that other load on the machine
hits both alike; what is asserted is the ratio of the medians.
"""

import itertools
import statistics
import sys
import time
from array import array
from pathlib import Path

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cache"))
from harness import HybridMarconiCache, make_cache

NODES, TURNS = 10_000, 4
MAX_RATIO = 1.2


class Filled:
    """A full cache of ``NODES`` states: conversations of four turns of varied length.

    Every eviction is followed by as many insertions as there is room for again, as
    in a server, where each new checkpoint takes the place of an old one.
    """

    def __init__(self, cache_class, config=None):
        self.cache = make_cache(config, slots=NODES + 1, tokens=NODES * 32, cache_class=cache_class)
        self.turns = self._turns()
        while self.cache.mamba_evictable_size() < NODES:
            self.insert(next(self.turns))

    @staticmethod
    def _turns():
        for conversation in itertools.count(1):
            length = 0
            for turn in range(TURNS):
                length += 8 + (conversation * 7 + turn * 5) % 41
                yield [conversation * 1000 + i for i in range(length)]

    def insert(self, tokens):
        kv = self.cache.token_to_kv_pool_allocator.alloc(len(tokens))
        if kv is None:
            self.cache.evict(EvictParams(num_tokens=len(tokens)))
            kv = self.cache.token_to_kv_pool_allocator.alloc(len(tokens))
        state = self.cache.req_to_token_pool.mamba_allocator.alloc(1)
        self.cache.insert(
            InsertParams(key=RadixKey(array("q", tokens), None), value=kv, mamba_value=state)
        )
        if isinstance(self.cache, HybridMarconiCache):
            # As where a request is admitted and where its checkpoint is done.
            self.cache.view.tick()
            self.cache.view.settle()

    def refill(self):
        while self.cache.mamba_evictable_size() < NODES:
            self.insert(next(self.turns))


def timed(filled, params):
    """Seconds of thread time, and whether the first victim was a leaf with its KV."""
    tokens = filled.cache.full_evictable_size()
    start = time.thread_time()
    filled.cache.evict(params)
    elapsed = time.thread_time() - start
    took_kv = filled.cache.full_evictable_size() < tokens
    filled.refill()
    return elapsed, took_kv


@pytest.fixture(scope="module")
def caches():
    stock = Filled(UnifiedRadixCache)
    ours = {
        policy: Filled(HybridMarconiCache, {"policy": policy})
        for policy in ("utility", "marconi", "lru")
    }
    return stock, ours


@pytest.mark.parametrize("policy", ["utility", "marconi", "lru"])
@pytest.mark.parametrize(
    ("what", "params", "rounds"),
    [
        ("one state", EvictParams(num_tokens=0, mamba_num=1), 600),
        ("4096 tokens", EvictParams(num_tokens=4096), 40),
    ],
)
def test_eviction_is_as_fast_as_stock(caches, policy, what, params, rounds):
    stock, ours = caches[0], caches[1][policy]
    samples = [(timed(stock, params), timed(ours, params)) for _ in range(rounds)]
    # A leaf costs more than an interior state, and policies differ in what they take:
    # like is compared with like, and the kinds weigh as often as stock takes them.
    base_cost = own_cost = 0.0
    for took_kv, kind in ((False, "interior"), (True, "leaf")):
        base, own = (
            [elapsed * 1e6 for elapsed, leaf in column if leaf == took_kv]
            for column in zip(*samples, strict=True)
        )
        if min(len(base), len(own)) < 20:
            continue
        base_cost += len(base) * statistics.median(base)
        own_cost += len(base) * statistics.median(own)
        ratio = statistics.median(own) / statistics.median(base)
        print(
            f"\n{policy:8} {what:12} {kind:8} stock {text(base)}   ours {text(own)}   {ratio:.2f}"
        )
    print(f"{policy:8} {what:12} like for like {own_cost / base_cost:.2f}")
    assert own_cost <= base_cost * MAX_RATIO


def text(samples):
    p99 = statistics.quantiles(samples, n=100)[98]
    return f"{statistics.median(samples):6.0f} us (p99 {p99:6.0f}, n {len(samples)})"

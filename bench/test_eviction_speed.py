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

NODES, TURNS, ROUNDS = 10_000, 4, 400
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
    start = time.thread_time()
    filled.cache.evict(params)
    elapsed = time.thread_time() - start
    filled.refill()
    return elapsed


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
    ("what", "params"),
    [
        ("one state", EvictParams(num_tokens=0, mamba_num=1)),
        ("4096 tokens", EvictParams(num_tokens=4096)),
    ],
)
def test_eviction_is_as_fast_as_stock(caches, policy, what, params):
    stock, ours = caches[0], caches[1][policy]
    rounds = ROUNDS if params.mamba_num else ROUNDS // 10
    samples = [(timed(stock, params), timed(ours, params)) for _ in range(rounds)]
    base, own = (statistics.median(column) * 1e6 for column in zip(*samples, strict=True))
    p99 = [statistics.quantiles(column, n=100)[98] * 1e6 for column in zip(*samples, strict=True)]
    print(
        f"\n{policy:8} {what:12} stock {base:8.0f} us (p99 {p99[0]:8.0f})   "
        f"ours {own:8.0f} us (p99 {p99[1]:8.0f})   ratio {own / base:.2f}   "
        f"buckets {[t.num_buckets for t in ours.cache.view.states.tiers]}"
    )
    assert own <= base * MAX_RATIO

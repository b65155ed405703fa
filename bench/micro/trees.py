"""Caches full of conversations, of SGLang and of ours, that take turns at the same operations."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable

from harness import HybridMarconiCache, make_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

Operation = Callable[[], object]
RUST, PYTHON = "stock, Rust core", "stock, Python core"
OURS = ("utility", "marconi", "lru")
TURN_TOKENS = 256
"""Tokens of a turn on average; they vary by a third."""


def make_full(name: str, nodes: int, turns: int) -> Full:
    """A full cache.

    Args:
        name: one of `RUST`, `PYTHON` and the policies `OURS`.
    """
    # Few tokens are free: SGLang's allocator copies the list of them wherever some are freed.
    pools = {"slots": nodes, "tokens": nodes * TURN_TOKENS + (1 << 13)}
    if name in OURS:
        return Full(make_cache({"policy": name}, **pools), nodes, turns)
    core = "rust" if name == RUST else "python"
    cache = make_cache(cache_class=UnifiedRadixCache, tree_core=core, **pools)
    return Full(cache, nodes, turns)


class Full:
    """A cache that holds ``nodes`` states, and as many tokens as go with them.

    Conversations have ``turns`` nodes in a row. Whatever an operation takes out is filled
    in again with new conversations, as in a server, where each new checkpoint takes the
    place of an old one.
    """

    def __init__(self, cache, nodes: int, turns: int):
        self.cache, self.nodes, self.turns = cache, nodes, turns
        self._new = self._sequences()
        self.refill()

    def _turn(self, conversation: int, turn: int) -> list[int]:
        """All tokens of ``conversation`` up to the end of a turn."""
        spreads = ((conversation * 7 + i * 5) % 171 - 85 for i in range(turn + 1))
        length = sum(TURN_TOKENS + spread for spread in spreads)
        return [conversation << 20 | i for i in range(length)]

    def _sequences(self):
        for conversation in itertools.count():
            for turn in range(self.turns):
                yield self._turn(conversation, turn)

    # ---- operations, prepared: what is returned does the operation alone ----

    def insertion(self) -> Operation:
        """Of the next turn, with its state."""
        tokens, pools, cache = next(self._new), self.cache.token_to_kv_pool_allocator, self.cache
        missing = len(tokens) - pools.available_size()
        if missing > 0:
            cache.evict(EvictParams(num_tokens=missing))
        if not cache.req_to_token_pool.mamba_allocator.available_size():
            cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        params = InsertParams(
            key=RadixKey(array("q", tokens), None),
            value=pools.alloc(len(tokens)),
            mamba_value=cache.req_to_token_pool.mamba_allocator.alloc(1),
        )
        if not isinstance(cache, HybridMarconiCache):
            return lambda: cache.insert(params)

        def insert():
            cache.insert(params)
            cache.view.tick()  # as where a request is admitted

        return insert

    def match(self, conversation: int) -> Operation:
        """Of a whole conversation, of which nothing was evicted, and a further question."""
        tokens = [*self._turn(conversation, self.turns - 1), *range(64)]
        params = MatchPrefixParams(key=RadixKey(array("q", tokens), None))
        return lambda: self.cache.match_prefix(params)

    def eviction(self, num_tokens: int = 0, mamba_num: int = 0) -> Operation:
        params = EvictParams(num_tokens=num_tokens, mamba_num=mamba_num)
        return lambda: self.cache.evict(params)

    def choice(self) -> Operation:
        """Of the state that goes next; of ours."""
        return self.cache.view.state_victim

    def refill(self) -> None:
        """Insert new turns for as long as there is room."""
        states, tokens = (
            self.cache.req_to_token_pool.mamba_allocator,
            self.cache.token_to_kv_pool_allocator,
        )
        longest = self.turns * TURN_TOKENS * 4 // 3
        while states.available_size() and tokens.available_size() >= longest:
            self.insertion()()

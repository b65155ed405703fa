"""States and tokens in one buffer (``--enable-unified-memory``): what either can be given.

SGLang counts for each kind what is free and what its own victims would give. Of victims of
the other kind it has KV make room for states (`mamba_full_cache_donor`), but lets admission
count on neither. Here states make room for KV as well, so that what has no use any more
can never keep a request waiting; and admission counts on all of it.

Slots and KV locations are virtual there: rows move when others are freed, ids stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.unified_cache.components import ComponentType

if TYPE_CHECKING:
    from sglang_hybrid.adapter.cache import HybridMarconiCache

FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


class SharedMemory:
    """The memory that states and tokens of one cache share.

    Args:
        allocator: SGLang's `UnifiedMambaTokenToKVPoolAllocator`.
    """

    def __init__(self, cache: HybridMarconiCache, allocator) -> None:
        self._cache = cache
        self._allocator = allocator
        self._token_bytes: int = allocator.full_attn_allocator.entry_bytes
        self._state_bytes: int = allocator.mamba_allocator.entry_bytes

    @property
    def total_bytes(self) -> int:
        """Without what SGLang sets aside for padding."""
        states = self._allocator.mamba_allocator
        return (states.num_pages - states.min_page_index) * self._state_bytes

    def slots_of_kv(self) -> int:
        """State slots that could be had by evicting KV."""
        return self._cache.full_evictable_size() * self._token_bytes // self._state_bytes

    def tokens_of_states(self) -> int:
        """Tokens, in whole pages, whose KV could be had by evicting states."""
        page = self._cache.page_size
        pages = self._cache.mamba_evictable_size() * self._state_bytes // self._token_bytes // page
        return pages * page

    def has_room(self, tokens: int, slots: int, set_aside: int) -> bool:
        """Whether ``tokens`` and ``slots`` can be had together, by eviction if need be.

        Args:
            set_aside: slots that are allocated and belong to nobody yet.
        """
        cache = self._cache
        kv = self._allocator.available_size() + cache.full_evictable_size()
        states = set_aside + cache.mamba_evictable_size()
        # What is free of one kind need not be whole pages or slots of the other.
        rest = self._state_bytes + cache.page_size * self._token_bytes
        needed = tokens * self._token_bytes + slots * self._state_bytes + rest
        return needed <= kv * self._token_bytes + states * self._state_bytes

    def give_states(self, kv_target: int) -> EvictResult:
        """Evict states until ``kv_target`` tokens are available, or none can go."""
        cache = self._cache
        states = cache.mamba_evictable_size()
        if states == 0 or self._allocator.available_size() >= kv_target:
            return EvictResult()
        return cache._evict(EvictParams(mamba_num=states), {MAMBA: (FULL, kv_target)})

    def state_slots(self) -> tuple[list[int], int]:
        """Slots that are free, and how many there are. Reads device memory; for checks."""
        states = self._allocator.mamba_allocator
        return states.free_virtual_ids.tolist(), states.num_pages - states.min_page_index

    def violations(self, slots: list[int]) -> list[str]:
        """What is wrong with the rows of state ``slots`` that are in use; for checks."""
        pool = self._cache.req_to_token_pool
        table = pool.mamba_v2p_table.tolist()
        rows = [table[slot] for slot in slots]
        found = list(self._allocator.verify_byte_accounting())
        if min(rows, default=0) < 0 or len(set(rows)) < len(rows):
            found.append(f"slots {slots} are in rows {rows}")
        return found

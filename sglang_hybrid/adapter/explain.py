"""Finds out why a request hit less than its prompt, and tells those who ask.

A request asks with ``"custom_params": {"explain_cache": true}`` in its sampling
parameters, and finds the answer in ``meta_info["cached_tokens_details"]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_hybrid.adapter.guards import Guard, guarded, nothing
from sglang_hybrid.adapter.host_tier import hit_of
from sglang_hybrid.adapter.short_hits import Reason, ShortHit
from sglang_hybrid.core.pages import PAGE_TOKENS, Hashes

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

    from sglang_hybrid.adapter.cache import HybridMarconiCache

ASK_KEY = "explain_cache"

_SLOTS = 1 << 14
_MAX_STEPS = 64
"""Nodes of a path that are looked at; a longer one is explained by its deep end."""


class EvictedPlaces:
    """Where checkpoints have been evicted, as far as it is remembered.

    By node while the KV lives, else by the hash of the last full page before the place,
    in a direct-mapped table of fixed size: a place whose entry is taken is forgotten.
    """

    def __init__(self, guard: Guard, slots: int = _SLOTS) -> None:
        self.guard = guard
        self._mask = np.uint64(slots - 1)
        self._pages = np.zeros(slots, np.uint64)
        self._depths = np.zeros(slots, np.int64)
        self._nodes: set[int] = set()
        self._hashes: dict[int, int] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._pages[:] = 0
        self._nodes.clear()
        self._hashes.clear()

    @guarded(nothing)
    def taken(self, node: UnifiedTreeNode, depth: int, pages: Hashes | None) -> None:
        """``node`` got a checkpoint at ``depth`` tokens; ``pages`` are those of its sequence."""
        self._nodes.discard(node.id)
        page = depth // PAGE_TOKENS
        if pages is not None and 0 < page <= len(pages):
            self._hashes[node.id] = int(pages[page - 1])

    @guarded(nothing)
    def evicted(self, node: UnifiedTreeNode, depth: int) -> None:
        """``node``'s checkpoint at ``depth`` tokens was evicted."""
        self._nodes.add(node.id)
        page = self._hashes.pop(node.id, None)
        if page is not None:
            at = page & int(self._mask)
            self._pages[at], self._depths[at] = page, depth

    @guarded(nothing)
    def forget(self, node: UnifiedTreeNode) -> None:
        """``node`` leaves the tree, and its KV with it."""
        self._nodes.discard(node.id)
        self._hashes.pop(node.id, None)

    def on_path(self, node: UnifiedTreeNode | None, top: UnifiedTreeNode) -> bool:
        """Whether a checkpoint was evicted from ``node`` or above it, below ``top``."""
        for _ in range(_MAX_STEPS):
            if node is None or node is top or node.parent is None:
                return False
            if node.id in self._nodes:
                return True
            node = node.parent
        return False

    def deepest(self, pages: Hashes, kv: int, reusable: int) -> int:
        """Depth of the deepest checkpoint known to have gone with its KV; 0 if there is none.

        Args:
            pages: of the prompt.
            kv, reusable: tokens whose KV is there, and the most that can be hit.
        """
        first = kv // PAGE_TOKENS
        pages = pages[first : reusable // PAGE_TOKENS]
        at = pages & self._mask
        depths = self._depths[at[self._pages[at] == pages]]
        depths = depths[depths <= reusable]
        return int(depths.max()) if len(depths) else 0


def _hit_only(explainer: Explainer, req: Req, _pages: Hashes | None) -> ShortHit:
    prompt, hit = len(req.full_untruncated_fill_ids), req.prefix_len
    return ShortHit(prompt, explainer._reusable(prompt), hit, hit, 0, Reason.NO_KV)


class Explainer:
    """Says of every admitted request what ended its hit."""

    def __init__(self, cache: HybridMarconiCache, guard: Guard) -> None:
        self._cache = cache
        self.guard = guard
        self.places = EvictedPlaces(guard)

    @guarded(nothing)
    def matched(self, req: Req, result: MatchResult, reachable: int) -> None:
        """``req`` was matched; what ended the hit is known now and counted when admitted.

        Args:
            reachable: depth of the deepest state that a prefill from the hit could keep
                on the KV that was found, in tokens.
        """
        hit, kv = hit_of(result), result.full_kv_hit_length
        reason = Reason.NO_KV
        if kv > hit:
            tree = self._cache.tree_core
            last = result.last_visited_node_id
            node = None if last is None else tree.node_by_id(last)
            if self.places.on_path(node, tree.node_by_id(result.best_match_node)):
                reason = Reason.EVICTED
            elif reachable == hit:
                reason = Reason.GRID
            elif reachable - hit < self._cache.config.min_gain_tokens:
                reason = Reason.MIN_GAIN
            else:
                reason = Reason.NO_STATE
        req.hybrid_match = (kv, reason)

    @guarded(nothing)
    def gave_up(self, req: Req) -> None:
        """The hit that was found is not used: there is no slot for the copy of its state."""
        kv, _ = req.hybrid_match
        req.hybrid_match = (kv, Reason.NO_SLOT)

    @guarded(nothing)
    def not_reloaded(self, req: Req) -> None:
        """The hit was on the host and stays there: there is no room for it on the device."""
        kv, _ = req.hybrid_match
        req.hybrid_match = (kv, Reason.NOT_RELOADED)

    @guarded(_hit_only)
    def admitted(self, req: Req, pages: Hashes | None) -> ShortHit:
        """What ended the hit of ``req``, which is now admitted.

        Args:
            pages: hashes of the prompt's pages, None where they are not computed.
        """
        prompt, hit = len(req.full_untruncated_fill_ids), req.prefix_len
        reusable = self._reusable(prompt)
        kv, beyond = getattr(req, "hybrid_match", (hit, Reason.NO_KV))
        evicted = 0
        if hit < reusable and pages is not None:
            evicted = self.places.deepest(pages, max(kv, hit), reusable)
        short = ShortHit(prompt, reusable, hit, kv, evicted, beyond)
        if _asks(req) and not hasattr(req, "hybrid_short_hit"):
            req.hybrid_short_hit = short
        return short

    def _reusable(self, prompt: int) -> int:
        return prompt - 1 - (prompt - 1) % self._cache.page_size


def _asks(req: Req) -> bool:
    params = req.sampling_params.custom_params
    return isinstance(params, dict) and params.get(ASK_KEY) is True


def cached_tokens_details(details: Any, _streamer: Any, req: Req) -> Any:
    """Hook after `SchedulerOutputStreamer.get_cached_tokens_details`."""
    short: ShortHit | None = getattr(req, "hybrid_short_hit", None)
    if short is None:
        return details
    return {**(details or {"device": 0, "host": 0}), **short.as_dict()}

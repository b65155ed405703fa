"""Serves requests on a cache as the scheduler does, whole or a step at a time."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING

import torch
from contents import holds, kv_differs, namespace_of, prefix_digests, write_kv, write_state
from sglang.srt.mem_cache.common import evict_from_tree_cache, release_kv_cache

if TYPE_CHECKING:
    from sglang_hybrid.adapter.cache import HybridMarconiCache


class Driver:
    """Serves requests on a ``no_buffer`` cache, one after another or overlapping.

    Whole requests: `serve`, or `start` and `finish`. A step at a time: `request`, `match`,
    `enter`, then `forward` and `checkpoint` for each chunk, `finish`, `abort` or `retract`.
    """

    def __init__(self, cache: HybridMarconiCache, chunk: int = 1 << 14):
        self.cache = cache
        self.chunk = chunk
        self.custom_params = None  # of the sampling parameters of requests from now on
        self.keys = {}  # of requests from now on: extra_key, cache_salt, lora_id
        self._ids = itertools.count()

    # ---- whole requests ----

    def serve(self, prompt, output=(7, 8, 9), extra_key=None) -> int:
        """One whole request; returns the tokens it hit."""
        req = self.start(prompt, extra_key)
        self.finish(req, list(output))
        return req.hit

    def start(self, prompt, extra_key=None):
        """Match, admit and prefill ``prompt``; returns the running request."""
        req = self.admit(prompt, extra_key)
        while True:
            end = min(req.prefix_len + self.chunk, len(req.full_untruncated_fill_ids))
            branch = self.cache.plan_chunk(req)
            if branch is not None and req.prefix_len < branch < end:
                end = branch
            self.forward(req, end)
            self.checkpoint(req)
            if end == len(req.full_untruncated_fill_ids):
                return req

    def finish(self, req, output):
        """Decode ``output`` (its last token has no KV yet) and release the request."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH

        end = len(req.full_untruncated_fill_ids) + len(output) - 1
        req.output_ids.extend(output)
        req.refresh_fill_ids()
        start = req.kv.kv_allocated_len
        self._reserve(req, start, end)
        self._compute(req, start, end)
        req.finished_reason = FINISH_LENGTH(length=len(output))
        self.release(req)

    def abort(self, req):
        """Release a request without a checkpoint, wherever it is, as after an abort."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        req.finished_reason = FINISH_ABORT("aborted")
        self.release(req, checkpoint=False)

    # ---- a step at a time ----

    def request(self, prompt, extra_key=None, sampling=None, **options):
        """A new request.

        Args:
            sampling: further sampling parameters.
            options: further arguments of SGLang's `Req`.
        """
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = {"max_new_tokens": 1 << 10, "custom_params": self.custom_params}
        params = SamplingParams(**{**params, **(sampling or {})})
        params.normalize(None)
        return Req(
            rid=f"r{next(self._ids)}",
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=params,
            **{"extra_key": extra_key, **self.keys, **options},
        )

    def wait(self, prompt, extra_key=None):
        """A new request, matched, which waits for admission."""
        req = self.request(prompt, extra_key)
        self.match(req)
        return req

    def match(self, req):
        """Match ``req``, which may now hold a slot for the copy of its hit's state."""
        req.init_next_round_input(self.cache)

    def admit(self, prompt, extra_key=None):
        """Match and admit ``prompt``; returns the request."""
        return self.take_in(self.wait(prompt, extra_key))

    def take_in(self, req):
        """Admit a request that waits."""
        req.lock = self.cache.lock(req.last_node)
        self.tell_admitted(req)
        self.enter([req])
        req.hit = req.prefix_len
        return req

    def tell_admitted(self, req):
        """What the cache hears of an admission."""
        self.cache.plan_chunk(req)
        self.cache.on_admitted(req)

    def check(self):
        """Raise AssertionError unless slots, tree and indexes agree."""
        self.cache.check_integrity()

    def enter(self, reqs):
        """Give admitted requests their rows and slots, as `ScheduleBatch.prepare_for_extend`."""
        from sglang.srt.mem_cache.allocation import alloc_req_slots

        cache = self.cache
        prefixes = [
            cache.prefix_device_indices(req) if req.prefix_len and not req.kv.holds_kv else None
            for req in reqs
        ]
        alloc_req_slots(cache.req_to_token_pool, reqs, cache)
        for req, prefix in zip(reqs, prefixes, strict=True):
            if prefix is None:
                continue
            cache.req_to_token_pool.write((req.kv.req_pool_idx, slice(0, req.prefix_len)), prefix)
            assert not kv_differs(
                cache.token_to_kv_pool_allocator, prefix, self.digests(req, req.prefix_len)[1:]
            ), f"{req.rid} hit KV of other tokens"

    def forward(self, req, end):
        """Compute ``req`` up to ``end``."""
        self._reserve(req, req.prefix_len, end)
        req.extend_end = end
        self._compute(req, req.prefix_len, end)

    def checkpoint(self, req):
        """The forward of ``req`` is done: the tree gets what there is."""
        self.cache.checkpoint(req, up_to=req.extend_end)
        req.prefix_len = req.extend_end
        self.check()

    def release(self, req, checkpoint=True):
        """``req`` has ended; with ``checkpoint`` the tree first gets what there is."""
        release_kv_cache(req, self.cache, checkpoint=checkpoint)
        self.check()

    def has_room(self, tokens: int) -> bool:
        """Whether the scheduler would admit a request of so many tokens."""
        if self.cache.shared is not None:
            return self.cache.shared.has_room(2 * tokens, 2, 0)
        allocator = self.cache.token_to_kv_pool_allocator
        kv = allocator.available_size() + self.cache.full_evictable_size()
        # A hit of the request may be locked, which takes it out of both.
        return kv >= 2 * tokens and self.cache.free_state_slots() >= 2

    # ---- what the forward does ----

    @staticmethod
    def tokens_of(req):
        """All tokens of ``req`` that are known to the device."""
        return req.full_untruncated_fill_ids

    def digests(self, req, end):
        """Digests of the prefixes of ``req``'s first ``end`` tokens, the empty one first."""
        return prefix_digests(self.tokens_of(req)[:end], namespace_of(req))

    def _reserve(self, req, start, end):
        """KV of tokens ``start`` to ``end``, whole pages at a time."""
        cache, page, row = self.cache, self.cache.page_size, req.kv.req_pool_idx
        table, allocator = cache.req_to_token_pool.req_to_token, cache.token_to_kv_pool_allocator
        first = -(-start // page) * page
        if start < first:
            ahead = torch.arange(1, min(first, end) - start + 1)
            table[row, start : min(first, end)] = table[row, start - 1] + ahead.to(table.dtype)
        tokens = -(-end // page) * page - first
        if tokens > 0:
            evict_from_tree_cache(cache, tokens)
            slots = allocator.alloc(tokens)
            assert slots is not None, "out of KV"
            table[row, first:end] = slots[: end - first].to(table.dtype)
        if end > start:
            digests = self.digests(req, end)[start + 1 :]
            write_kv(allocator, table[row, start:end].long(), digests)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end

    def _compute(self, req, start, end, is_checked=True):
        """Bring ``req``'s running state from ``start`` to ``end`` tokens.

        Args:
            is_checked: whether to read it first, which takes longer than all else.
        """
        kv, pool = req.kv, self.cache.req_to_token_pool
        if kv.mamba_cow_src_index is not None:
            # The copy of its hit's state, with which a request's first forward begins.
            slots = kv.mamba_cow_src_index, kv.mamba_pool_idx.unsqueeze(0)
            pool.copy_mamba_state(*map(pool.translate_mamba_indices, slots))
            kv.mamba_cow_src_index = None
        kv.mamba_needs_clear = False
        if start and is_checked:
            assert self.has_state(req, start), f"{req.rid} does not go on from token {start}"
        self._write_state(kv.mamba_pool_idx, req, end)

    def _write_state(self, slot, req, depth):
        write_state(self.cache.req_to_token_pool, slot, int(self.digests(req, depth)[-1]))

    def has_state(self, req, depth) -> bool:
        """Whether ``req``'s running state is the one after ``depth`` tokens."""
        pool = self.cache.req_to_token_pool
        return holds(pool, req.kv.mamba_pool_idx, int(self.digests(req, depth)[-1]))

"""Drives a cache whose prefill forwards save states, in any strategy and page size.

A forward here writes what its plan says: the digest of a prefix to every slot that is to
hold the state behind it, the state at the end of a row by copying the running one.
"""

from types import SimpleNamespace

import torch
from harness import Driver, make_cache, signature
from sglang.srt.layers.attention import hybrid_linear_attn_backend
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang_hybrid.kernels.state_tracking import track_mamba_states_all_layers

from sglang_hybrid.adapter.saving import Family, saved_of

FAMILY = Family("mamba2", 64, 3)


def saving_cache(config=None, **options):
    config = {"min_gain_tokens": 1, **(config or {})}
    return make_cache(config, **{"family": FAMILY, **options})


def batch_of(reqs):
    """What `Saver.prepare` reads of SGLang's batch."""
    rows = torch.tensor([req.kv.req_pool_idx for req in reqs])
    return SimpleNamespace(reqs=reqs, req_pool_indices=rows)


class SavingDriver(Driver):
    """Serves requests whose prefill goes through `Saver.prepare`.

    Attributes:
        writes: whether forwards write the states inside their rows; one that is
            replayed from a graph does not.
        passes: prefill forwards so far.
    """

    def __init__(self, cache, chunk=1 << 14):
        super().__init__(cache, chunk)
        self.writes = True
        self.passes = 0
        # The unit under test calls it as SGLang's decode does; here in torch.
        hybrid_linear_attn_backend.track_mamba_states_all_layers = track_mamba_states_all_layers

    def forward(self, req, end):
        """Prepare and run the forward that computes ``req`` up to ``end``."""
        cache, start = self.cache, req.prefix_len
        self._reserve(req, start, end)
        req.extend_end = end
        if cache.enable_mamba_extra_buffer:
            cache.saver.track_tail(req)
        batch = batch_of([req])
        cache.saver.prepare(batch)
        cache.check_integrity()
        self._write_state(req, signature(req.full_untruncated_fill_ids[:end]))
        self.passes += 1
        saves = getattr(batch, "hybrid_saves", None)
        if saves is None:
            return
        if self.writes and saves.has_inside:
            self._write_inside(req, saves)
        saves.copy_ends()

    def _write_inside(self, req, saves):
        saves.begin()
        tokens, states = req.full_untruncated_fill_ids, []
        for slot, end in zip(saves._slots, saves.ends.tolist(), strict=True):
            depth = req.prefix_len + end
            temporal = self.cache.req_to_token_pool.mamba_pool.mamba_cache.temporal
            temporal[:, int(slot)] = signature(tokens[:depth])
            states.append(depth)
        assert [saved.depth for saved in saved_of(req)] == states[: len(saved_of(req))]
        saves._layers_written = len(self.cache.req_to_token_pool.mamba_map)

    def start(self, prompt, extra_key=None, stop_after=None):
        """As `Driver.start`; ``stop_after`` forwards it leaves the last without a checkpoint."""
        req = self.admit(prompt, extra_key)
        while True:
            end = min(req.prefix_len + self.chunk, len(req.full_untruncated_fill_ids))
            page = self.cache.page_size
            if end < len(req.full_untruncated_fill_ids):
                end -= end % page
            self.forward(req, end)
            if stop_after is not None and self.passes >= stop_after:
                return req
            self.cache.checkpoint(req, up_to=end)
            req.prefix_len = end
            self.cache.check_integrity()
            if end == len(req.full_untruncated_fill_ids):
                return req

    def finish(self, req, output, in_flight=False, stops=False, kept=None):
        """As `Driver.finish`; with a step ``in_flight`` the last token is computed too.

        Args:
            stops: whether the last token is one of the request's stop tokens.
            kept: tokens that enter the tree, if not all that were computed.
        """
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        end = len(req.full_untruncated_fill_ids) + len(output) - 1 + in_flight
        req.output_ids.extend(output)
        req.refresh_fill_ids()
        if end > req.kv.kv_allocated_len:
            self._reserve(req, req.kv.kv_allocated_len, end)
        if stops:
            req.sampling_params.stop_token_ids = {output[-1]}
            del req.hybrid_stop_ids
            self.cache.saver.stops.note(batch_of([req]))
        self._decode(req, end, output[-1] if in_flight else None)
        if kept is not None:
            req.finished_len = kept - len(req.origin_input_ids)
        req.finished_reason = FINISH_LENGTH(length=len(output))
        release_kv_cache(req, self.cache, checkpoint=True)
        self.cache.check_integrity()

    def _decode(self, req, end, in_flight=None):
        """Run decode up to ``end``, saving on pages as SGLang's decode does on its grid.

        Args:
            in_flight: the token that the last step computes, if it runs beyond the end.
        """
        kv, pool = req.kv, self.cache.req_to_token_pool
        tokens, page = req.full_untruncated_fill_ids, self.cache.page_size
        for depth in range(len(req.origin_input_ids) + 1, end + 1):
            if depth == end and in_flight is not None and self.cache.saver.stops is not None:
                rows = torch.tensor([req.kv.req_pool_idx])
                forward_batch = SimpleNamespace(
                    req_pool_indices=rows, input_ids=torch.tensor([in_flight])
                )
                self.cache.saver.stops.before(forward_batch, 1)
            self._write_state(req, signature(tokens[:depth]))
            if self.cache.enable_mamba_extra_buffer and page > 1 and depth % page == 0:
                index = kv.mamba_next_track_idx
                temporal = pool.mamba_pool.mamba_cache.temporal
                slot = kv.mamba_ping_pong_track_buffer[index]
                temporal[:, slot] = temporal[:, kv.mamba_pool_idx]
                kv.mamba_prev_track_seqlen = kv.mamba_last_track_seqlen
                kv.mamba_last_track_idx, kv.mamba_last_track_seqlen = index, depth
                kv.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(index)
        kv.kv_committed_len = end

    def _reserve(self, req, start, end):
        """KV for tokens ``start`` to ``end``, whole pages at a time."""
        cache, page = self.cache, self.cache.page_size
        table, allocator = cache.req_to_token_pool.req_to_token, cache.token_to_kv_pool_allocator
        row, first = req.kv.req_pool_idx, -(-start // page) * page
        if start < first:
            ahead = torch.arange(1, min(first, end) - start + 1)
            table[row, start : min(first, end)] = table[row, start - 1] + ahead.to(table.dtype)
        pages = -(-end // page) * page - first
        if pages > 0:
            short = pages - allocator.available_size()
            if short > 0:
                cache.evict_for_alloc(EvictParams(num_tokens=short))
            slots = allocator.alloc(pages)
            assert slots is not None, "out of KV"
            table[row, first:end] = slots[: end - first].to(table.dtype)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end

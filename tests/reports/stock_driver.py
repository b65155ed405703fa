"""Drives SGLang's own cache as `driver.Driver` drives ours, so that a report can be reproduced."""

from types import SimpleNamespace

from driver import Driver
from harness import make_cache
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def unique(length: int, salt: int) -> list[int]:
    """A prompt that shares nothing with those of other salts."""
    return list(range(salt * 100_000 + 1, salt * 100_000 + 1 + length))


def sharing(shared: int, own: int, salt: int) -> list[int]:
    """A prompt whose first ``shared`` tokens are those of every salt above 0."""
    return [*unique(shared, 0), *unique(own, salt)]


def clear(cache) -> None:
    """What ``/flush_cache`` does."""
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()


def stock_cache(**options) -> UnifiedRadixCache:
    """SGLang's own cache over real pools."""
    return make_cache(cache_class=UnifiedRadixCache, **options)


class StockDriver(Driver):
    """Serves requests on a `UnifiedRadixCache`, in ``no_buffer`` or ``extra_buffer``.

    Which state a prefill forward tracks is SGLang's choice, made by its own code.
    """

    def start(self, prompt, extra_key=None):
        req = self.admit(prompt, extra_key)
        while True:
            end = min(req.prefix_len + self.chunk, len(req.full_untruncated_fill_ids))
            self.forward(req, end)
            self.checkpoint(req)
            if end == len(req.full_untruncated_fill_ids):
                return req

    def forward(self, req, end):
        """Run the forward that computes ``req`` up to ``end``, and track what SGLang tracks."""
        cache = self.cache
        req.extend_end = end
        if cache.enable_mamba_extra_buffer:
            batch = SimpleNamespace(
                model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
                tree_cache=cache,
                req_to_token_pool=cache.req_to_token_pool,
            )
            ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
            depth = req.kv.mamba_last_track_seqlen
            if depth is not None:
                slot = req.kv.mamba_ping_pong_track_buffer[req.kv.mamba_last_track_idx]
                self._write_state(slot, req, depth)
        super().forward(req, end)

    def check(self):
        self.cache.sanity_check()

    def tell_admitted(self, req):
        pass

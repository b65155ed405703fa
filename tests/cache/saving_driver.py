"""Drives a cache whose prefill forwards save states, in any strategy and page size.

A forward here writes what its plan says: the digest of a prefix to every slot that is to
hold the state behind it, the state at the end of a row by copying the running one.
"""

from types import SimpleNamespace

import torch
from contents import write_state_row
from driver import Driver
from harness import make_cache
from sglang.srt.layers.attention import hybrid_linear_attn_backend
from sglang.srt.managers.schedule_batch import ScheduleBatch, set_mamba_track_indices_from_reqs
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang_hybrid.kernels.state_tracking import track_mamba_states_all_layers

from sglang_hybrid.adapter.saving import Family, saved_of

FAMILY = Family("mamba2", 64, 3)


def saving_cache(config=None, **options):
    config = {"min_gain_tokens": 1, **(config or {})}
    return make_cache(config, **{"family": FAMILY, **options})


def batch_of(reqs, cache=None):
    """What the cache and SGLang's tracking of states read of a batch."""
    rows = torch.tensor([req.kv.req_pool_idx for req in reqs])
    batch = SimpleNamespace(reqs=reqs, req_pool_indices=rows)
    if cache is not None:
        batch.tree_cache, batch.req_to_token_pool = cache, cache.req_to_token_pool
        batch.model_config = SimpleNamespace(hf_text_config=SimpleNamespace())
    return batch


class SavingDriver(Driver):
    """Serves requests whose prefill goes through `Saver.prepare`, or SGLang's own tracking.

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

    # ---- whole requests ----

    def start(self, prompt, extra_key=None, stop_after=None):
        """As `Driver.start`; ``stop_after`` forwards it leaves the last without a checkpoint."""
        req = self.admit(prompt, extra_key)
        while True:
            end = min(req.prefix_len + self.chunk, len(req.full_untruncated_fill_ids))
            if end < len(req.full_untruncated_fill_ids):
                end -= end % self.cache.page_size
            self.forward(req, end)
            if stop_after is not None and self.passes >= stop_after:
                return req
            self.checkpoint(req)
            if end == len(req.full_untruncated_fill_ids):
                return req

    def finish(self, req, output, in_flight=False, stops=False, kept=None):
        """As `Driver.finish`; with a step ``in_flight`` the last token is computed too.

        Args:
            stops: whether the last token is one of the request's stop tokens.
            kept: tokens that enter the tree, if not all that were computed.
        """
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH

        start = len(req.full_untruncated_fill_ids)
        end = start + len(output) - 1 + in_flight
        req.output_ids.extend(output)
        req.refresh_fill_ids()
        if stops:
            req.sampling_params.stop_token_ids = {output[-1]}
            del req.hybrid_stop_ids
            self.cache.saver.stops.note(batch_of([req]))
        for _ in range(start, end):
            self._land(req, self.decode([req]))
        if kept is not None:
            req.finished_len = kept - len(req.origin_input_ids)
        req.finished_reason = FINISH_LENGTH(length=len(output))
        self.release(req)

    @staticmethod
    def _land(req, batch):
        """The bookkeeping of SGLang's result of a decode step that saved ``req``'s state."""
        if batch is not None and batch.mamba_track_mask_cpu[0]:
            kv, pool = req.kv, batch.req_to_token_pool
            kv.mamba_last_track_idx = batch.mamba_track_buffer_indices[0]
            kv.mamba_prev_track_seqlen = kv.mamba_last_track_seqlen
            kv.mamba_last_track_seqlen = kv.kv_committed_len
            kv.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(kv.mamba_last_track_idx)

    # ---- a prefill forward ----

    def forward(self, req, end):
        """Prepare and run the forward that computes ``req`` up to ``end``."""
        req.extend_end = end
        self.run(self.prepare([req]))

    def prepare(self, reqs):
        """Prepare the forward that computes each of ``reqs`` up to its `extend_end`."""
        cache, batch = self.cache, batch_of(reqs, self.cache)
        for req in reqs:
            self._reserve(req, req.prefix_len, req.extend_end)
            req.is_retracted = False
            if not cache.enable_mamba_extra_buffer:
                continue
            if cache.saver is None:
                ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
            else:
                cache.saver.track_tail(req)
        ScheduleBatch._collect_deferred_mamba_cow_and_clear(batch, reqs)
        if cache.saver is not None:
            cache.saver.prepare(batch)
        cache.check_integrity()
        return batch

    def run(self, batch):
        """Run a forward that was prepared."""
        pool = self.cache.req_to_token_pool
        if batch.mamba_cow_src_indices is not None:
            slots = batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices
            pool.copy_mamba_state(*map(pool.translate_mamba_indices, slots))
        for req in batch.reqs:
            self._compute(req, req.prefix_len, req.extend_end)
            if self.cache.saver is None:
                self._track_on_grid(req)
        self.passes += 1
        saves = getattr(batch, "hybrid_saves", None)
        if saves is None:
            return
        if self.writes and saves.has_inside:
            self._write_inside(batch.reqs, saves)
        saves.copy_ends()

    def _track_on_grid(self, req):
        """SGLang's own tracking: the state that its bookkeeping says this forward keeps."""
        kv = req.kv
        depth = kv.mamba_last_track_seqlen
        if depth is not None and req.prefix_len < depth <= req.extend_end:
            self._write_state(kv.mamba_ping_pong_track_buffer[kv.mamba_last_track_idx], req, depth)

    def _write_inside(self, reqs, saves):
        saves.begin()
        starts, ends, first = [], saves.ends.tolist(), 0
        for req in reqs:
            starts.append(first)
            first += req.extend_len
        written = {id(req): [] for req in reqs}
        targets, pool = saves._targets.tolist(), self.cache.req_to_token_pool
        for target, row, end in zip(targets, saves.rows.tolist(), ends, strict=True):
            req = reqs[row]
            depth = req.prefix_len + end - starts[row]
            write_state_row(pool, target, int(self.digests(req, depth)[-1]))
            written[id(req)].append(depth)
        for req in reqs:
            saved = [each.depth for each in saved_of(req) if each.forward is saves]
            assert saved == written[id(req)][: len(saved)]
        saves._layers_written = len(self.cache.req_to_token_pool.mamba_map)

    # ---- a decode step ----

    @property
    def decode_grid(self):
        """Tokens between two states that decode saves."""
        return self.cache.components[ComponentType.MAMBA].mamba_track_grid

    def decode(self, reqs):
        """Prepare and run a decode step: each of ``reqs`` computes its next token.

        Returns:
            the batch, as SGLang's `ScheduleBatch.prepare_for_decode` leaves it, or None
            where decode saves nothing.
        """
        cache, batch = self.cache, None
        for req in reqs:
            end = req.kv.kv_committed_len + 1
            self._reserve(req, end - 1, end)
            req.decode_batch_idx += 1
        if cache.enable_mamba_extra_buffer:
            batch = batch_of(reqs, cache)
            batch.seq_lens_cpu = torch.tensor([req.kv.kv_committed_len for req in reqs])
            if cache.req_to_token_pool.enable_mamba_extra_buffer_lazy:
                ScheduleBatch.mamba_lazy_prealloc_at_boundary(batch, self.decode_grid)
            set_mamba_track_indices_from_reqs(batch)
            rest = batch.seq_lens_cpu % self.decode_grid
            batch.mamba_track_mask_cpu = (rest == 0).tolist()
            batch.mamba_track_mask_next_cpu = (rest == self.decode_grid - 1).tolist()
            batch.mamba_decode_batch_idx_cpu = [req.decode_batch_idx for req in reqs]
        self._run_decode(reqs, batch)
        return batch

    def _run_decode(self, reqs, batch):
        cache, pool = self.cache, self.cache.req_to_token_pool
        if cache.saver is not None and cache.saver.stops is not None:
            tokens = [self.tokens_of(req)[req.kv.kv_committed_len - 1] for req in reqs]
            forward_batch = SimpleNamespace(
                req_pool_indices=batch.req_pool_indices, input_ids=torch.tensor(tokens)
            )
            cache.saver.stops.before(forward_batch, len(reqs))
        for req in reqs:
            end = req.kv.kv_committed_len
            self._compute(req, end - 1, end, is_checked=False)
        if batch is None:
            return
        for req, is_saved, slot in zip(
            reqs, batch.mamba_track_mask_cpu, batch.mamba_track_indices.tolist(), strict=True
        ):
            if is_saved:
                slots = req.kv.mamba_pool_idx.view(1), torch.tensor([slot])
                pool.mamba_pool.copy_from(*map(pool.translate_mamba_indices, slots))

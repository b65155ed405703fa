"""SGLang's scheduling loop in small, over a real cache and real pools.

Admission is `HybridPrefillAdder`, what a finished step means `SchedulerBatchResultProcessor`;
between them stands what `Scheduler.get_next_batch_to_run` and its event loops do. With the
overlap schedule a step is launched before the result of the one before it is processed.
"""

from types import SimpleNamespace

from saving_driver import SavingDriver, batch_of
from sglang.srt.managers.schedule_batch import FINISH_ABORT, release_req
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from step_results import Step, StepResults

from sglang_hybrid.adapter.prefill import HybridPrefillAdder

_RUNNING_RATIO = 0.05  # of the tokens that running requests may still want, set aside
_MOST_PREFILL_TOKENS = 1 << 20


class SmallScheduler(SavingDriver):
    """Queues, running requests and the steps in flight.

    Args:
        chunk: tokens of a prefill step, None without chunked prefill.

    Attributes:
        sample: function from a request to the next token that it samples.
        retracted: requests retracted so far, for want of KV or on demand.
        results: processes the results of steps.
    """

    def __init__(self, cache, chunk, sample):
        super().__init__(cache, chunk)
        self.sample = sample
        self.waiting, self.running, self._fresh = [], [], []
        self.chunked, self.pending = None, None
        self.overlap = cache.enable_mamba_extra_buffer and not _is_overlap_off()
        self.retracted = 0
        self.results = StepResults(cache, self.overlap)

    @property
    def live(self):
        """Requests that may hold anything."""
        reqs = [*self.waiting, *self.running, *self._fresh]
        return [*reqs, self.chunked] if self.chunked is not None else reqs

    @staticmethod
    def tokens_of(req):
        return [*req.origin_input_ids, *req.sampled]

    # ---- what clients do ----

    def submit(self, prompt, extra_key=None, **options):
        req = self.request(prompt, extra_key, **options)
        req.sampled = []
        self.waiting.append(req)
        return req

    def match_only(self, req, keeps_slot):
        """A pass looks at ``req``, which waits, and does not admit it."""
        self.match(req)
        if not keeps_slot:
            self._not_admitted(req)

    def abort_waiting(self, req):
        """As `Scheduler.abort_request` for a request that waits."""
        self.waiting.remove(req)
        if req.kv.holds_mamba:
            release_kv_cache(req, self.cache, checkpoint=False)
        req.finished_reason = FINISH_ABORT("aborted")

    def abort_chunked(self):
        """As `Scheduler.process_pending_chunked_abort`."""
        req, self.chunked = self.chunked, None
        self.abort(req)

    def abort_running(self, req):
        """``req``, which runs, ends with its next result."""
        req.to_finish = FINISH_ABORT("aborted")

    # ---- one step ----

    def prefill(self, runs=True):
        """A pass that prefills what the adder admits; returns its requests.

        Args:
            runs: else the forward fails before it has begun, and the pass's requests end.
        """
        self._begin()
        self._make_room()
        cache, pool = self.cache, self.cache.req_to_token_pool
        running = SimpleNamespace(reqs=self.running, batch_size=lambda: len(self.running))
        adder = HybridPrefillAdder(
            cache.page_size,
            cache,
            cache.token_to_kv_pool_allocator,
            running,
            _RUNNING_RATIO,
            _MOST_PREFILL_TOKENS,
            self.chunk,
        )
        if self.chunked is not None:
            self.chunked.init_next_round_input()
            self.chunked = adder.add_chunked_req(self.chunked)
        pool.mamba_allocator.alloc_group_begin(len(self.waiting))
        for req in self.waiting:
            if len(adder.can_run_list) >= pool.available_size():
                break
            self.match(req)
            verdict = adder.add_one_req(
                req, has_chunked_req=self.chunked is not None, truncation_align_size=None
            )
            if verdict != AddReqResult.CONTINUE:
                if req not in adder.can_run_list[-1:]:
                    self._not_admitted(req)
                break
        pool.mamba_allocator.alloc_group_end()
        reqs = adder.can_run_list
        self.waiting = [req for req in self.waiting if req not in reqs]
        if adder.new_chunked_req is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked_req
        if not reqs:
            self._settle(None)
            return reqs
        self._prefill(reqs, runs)
        return reqs

    def _prefill(self, reqs, runs):
        if self.chunked is not None:
            self.chunked.inflight_middle_chunks += 1
        self.enter(reqs)
        batch = self.prepare(reqs)
        if not runs:
            self.chunked = None if self.chunked in reqs else self.chunked
            for req in reqs:
                self.abort(req)
            return self._settle(None)
        self.run(batch)
        ended = [req for req in reqs if req is not self.chunked]
        for req in ended:
            assert req.extend_end == len(req.full_untruncated_fill_ids), f"{req.rid} is cut off"
        tokens = [None if req is self.chunked else self._sampled(req) for req in reqs]
        self._fresh = ended
        self._settle(Step(reqs, tokens))

    def decode_step(self, retract=0):
        """A step that decodes all running requests; returns them.

        Args:
            retract: how many are retracted before it, besides those for want of KV.
        """
        self._begin()
        if self.overlap and self.pending is not None:
            due = [req for req in self.pending.reqs if req.next_output_finishes_by_length()]
        else:
            due = []
        reqs = [req for req in self.running if req not in due]
        while reqs and (retract > 0 or not self._has_kv(reqs)):
            # Where one request alone is too large, SGLang ends it.
            self._retract(reqs, ends=retract <= 0 and len(reqs) == 1)
            retract -= 1
        if reqs:
            batch = self.decode(reqs)
            if batch is None:
                batch = batch_of(reqs, self.cache)
                batch.mamba_track_mask_cpu = None
            batch.spec_algorithm = SpeculativeAlgorithm.NONE
            self._settle(Step(reqs, [self._sampled(req) for req in reqs], batch))
        else:
            self._settle(None)
        return reqs

    def flush(self):
        """As ``/flush_cache``, which an idle scheduler allows."""
        assert not self.live and self.pending is None
        self.cache.reset()
        self.cache.req_to_token_pool.clear()
        self.cache.token_to_kv_pool_allocator.clear()

    # ---- inside a step ----

    def _begin(self):
        """As the begin of `get_next_batch_to_run`."""
        if self.cache.shared is not None and self.pending is None:
            # As `Scheduler.on_idle`, and where SGLang does not overlap two steps.
            self.cache.token_to_kv_pool_allocator.flush_opportunistic()
        if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix_len:
            checkpoint_kv_cache(self.chunked, self.cache)
        self.running = [req for req in [*self.running, *self._fresh] if not req.finished()]
        self._fresh = []

    def _not_admitted(self, req):
        req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        if req.kv.holds_mamba:
            self.cache.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv.mamba_pool_idx = None

    def _sampled(self, req):
        req.sampled.append(self.sample(req))
        return req.sampled[-1]

    def _free_kv(self):
        allocator = self.cache.token_to_kv_pool_allocator
        return allocator.available_size() + self.cache.full_evictable_size()

    def _has_kv(self, reqs):
        page = self.cache.page_size
        return page * sum(req.kv.kv_committed_len % page == 0 for req in reqs) <= self._free_kv()

    def _make_room(self):
        """KV for the next chunk, which SGLang takes for granted."""
        while self.chunked is not None and self._free_kv() < self.chunk + self.cache.page_size:
            if self.running:
                self._retract(self.running[:])
            else:
                self.abort_chunked()

    def _retract(self, reqs, ends=False):
        """As `ScheduleBatch.retract_decode`: the last goes back to the queue, or ends."""
        req = reqs.pop()
        self.running.remove(req)
        if ends:
            self.abort(req)
            return
        release_req(
            req=req,
            remaing_req_count=len(reqs),
            req_to_token_pool=self.cache.req_to_token_pool,
            token_to_kv_pool_allocator=self.cache.token_to_kv_pool_allocator,
            tree_cache=self.cache,
            hisparse_coordinator=None,
        )
        req.sampled = list(req.output_ids)
        self.retracted += 1
        self.waiting.append(req)

    def _settle(self, step):
        """``step`` was launched: process the result that is due."""
        if self.overlap:
            due, self.pending = self.pending, step
        else:
            due = step
        if due is None:
            return
        self.results.process(due, self.decode_grid)
        self.running = [req for req in self.running if not req.finished()]
        self._fresh = [req for req in self._fresh if not req.finished()]


def _is_overlap_off():
    from sglang.srt.runtime_context import get_schedule

    return get_schedule().disable_overlap_schedule

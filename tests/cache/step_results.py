"""What the result of a step means for its requests, as SGLang's result processor has it."""

import dataclasses
from unittest import mock

from sglang.srt.managers.scheduler_components import batch_result_processor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache

_Processor = batch_result_processor.SchedulerBatchResultProcessor


@dataclasses.dataclass
class Step:
    """A launched step whose result has not been processed.

    Attributes:
        tokens: what each request sampled, which the device knows and the scheduler does not.
        batch: of a decode step, None for a prefill.
    """

    reqs: list
    tokens: list
    batch: object = None


class StepResults:
    """Processes results of steps.

    Attributes:
        on_decoded: told of each result of a decode step: the request and the tokens computed.
    """

    def __init__(self, cache, overlap):
        self._cache = cache
        self.on_decoded = lambda req, depth: None
        absent = {field.name: None for field in dataclasses.fields(_Processor)}
        self._processor = _Processor(
            **{
                **absent,
                "tree_cache": cache,
                "req_to_token_pool": cache.req_to_token_pool,
                "token_to_kv_pool_allocator": cache.token_to_kv_pool_allocator,
                "enable_overlap": overlap,
            }
        )

    def process(self, step, decode_grid):
        """``step`` has run; decode saves a state every ``decode_grid`` tokens."""
        if step.batch is None:
            self._prefill(step)
            return
        grid = mock.patch.object(
            batch_result_processor, "mamba_track_grid", lambda page: decode_grid
        )
        with grid:
            self._decode(step)

    def _prefill(self, step):
        """As `process_batch_result_prefill`."""
        for req, token in zip(step.reqs, step.tokens, strict=True):
            if (req.finished() and req.inflight_middle_chunks <= 0) or req.is_retracted:
                continue
            if req.inflight_middle_chunks > 0:
                req.inflight_middle_chunks -= 1
                continue
            req.output_ids.append(token)
            req.update_finish_state()
            if req.finished():
                release_kv_cache(req, self._cache, checkpoint=True)
            else:
                checkpoint_kv_cache(req, self._cache)

    def _decode(self, step):
        """As `process_batch_result_decode`."""
        for index, (req, token) in enumerate(zip(step.reqs, step.tokens, strict=True)):
            if req.finished() or req.is_retracted:
                continue
            req.output_ids.append(token)
            req.update_finish_state()
            self.on_decoded(req, req.seqlen - 1)
            self._processor._handle_finish_state_updated_req(
                req, step.batch, GenerationBatchResult(), index, None
            )

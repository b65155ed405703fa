"""The end of a sequence that a stop token ends, with the overlap schedule.

When the scheduler learns that a token was a stop token, the step that computes it has been
launched. A history may not contain that token, so the state before it is wanted; but
the running state is beyond it. The device knows the token before that step starts: the
forward then first copies the running state to the request's tracking slot.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.utils import is_pin_memory_available

from sglang_hybrid.adapter.guards import Guard
from sglang_hybrid.adapter.state_copies import copy_states

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

_MOST_IDS = 8  # of one request; a sequence that ends by another keeps the state behind it
_NO_TOKEN = -1
_TOO_LARGE = 2**31  # for a token id


class StopCopies:
    """Copies states before a step that computes a stop token.

    Args:
        pool: SGLang's request pool; a request's row in it stands for the request.
        guard: of the saving of states.

    Attributes:
        SLOT: entry of a request's tracking buffer that takes the copy; always filled.
    """

    SLOT = 0

    def __init__(self, pool: HybridReqToTokenPool, guard: Guard) -> None:
        self._pool, self._guard = pool, guard
        self._is_on = True
        rows, device = pool.req_to_token.shape[0], pool.req_to_token.device
        self._ids = torch.full((rows, _MOST_IDS), _NO_TOKEN, dtype=torch.int64, device=device)

    def note(self, batch: ScheduleBatch) -> None:
        """``batch``'s requests are about to be prefilled: bring their stop tokens over."""
        for req in batch.reqs:
            if not hasattr(req, "hybrid_stop_ids"):
                req.hybrid_stop_ids = _stop_ids(req)
        padding = [_NO_TOKEN] * _MOST_IDS
        rows = [[*req.hybrid_stop_ids, *padding][:_MOST_IDS] for req in batch.reqs]
        device = self._ids.device
        ids = torch.tensor(rows, dtype=torch.int64, pin_memory=is_pin_memory_available(device))
        self._ids[batch.req_pool_indices] = ids.to(device, non_blocking=True)

    def give_up(self) -> None:
        """Copies may be missing from now on, so none is relied on."""
        self._is_on = False

    def before(self, forward_batch: Any, decoding: int) -> None:
        """A forward starts whose last ``decoding`` rows decode, one token each."""
        if self._is_on:
            with self._guard.on_device(self.give_up):
                self._copy(forward_batch, decoding)

    def _copy(self, forward_batch: Any, decoding: int) -> None:
        rows = forward_batch.req_pool_indices[-decoding:]
        tokens = forward_batch.input_ids[-decoding:]
        stops = (self._ids[rows] == tokens[:, None]).any(1)
        pool = self._pool
        targets = pool.req_index_to_mamba_ping_pong_track_buffer_mapping[rows, self.SLOT]
        copy_states(pool, pool.get_mamba_indices(rows), targets, stops)

    def has_copy(self, req: Req) -> bool:
        """Whether ``req``, which has ended, was copied before the step in flight."""
        output = req.output_ids
        in_flight = req.kv.kv_committed_len == len(req.origin_input_ids) + len(output)
        return self._is_on and in_flight and len(output) > 0 and output[-1] in req.hybrid_stop_ids


def _stop_ids(req: Req) -> tuple[int, ...]:
    """Tokens of which SGLang ends ``req`` (`Req._check_token_based_finish`), the first few."""
    params, tokenizer = req.sampling_params, req.tokenizer
    if params.ignore_eos:
        return ()
    ids = {*(params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if tokenizer is not None:
        ids |= {tokenizer.eos_token_id, *(tokenizer.additional_stop_token_ids or ())}
    # SGLang takes whatever integers a request names; no token is one of the others.
    tokens = (each for each in ids - {None} if 0 <= each < _TOO_LARGE)
    return tuple(heapq.nsmallest(_MOST_IDS, tokens))

"""The Mamba-2 state-space scan (SSD) over a varlen batch, in plain torch.

The batch is cut into segments of at most one chunk. Inside a segment the recurrence is a masked
matrix product (quadratic in the chunk, all segments at once); between segments only the states
are carried on, one small multiply-add per segment. There is no loop over tokens.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from .advance_mamba2 import advance_mamba2_torch

# Segments per block of the quadratic part: bounds its memory, which is
# segments * heads * chunk^2 elements.
_BLOCK_ELEMENTS = 1 << 23

# Double precision makes the outputs, once rounded, almost independent of where a sequence was
# cut into calls. In float32 a prefix hit and a cold run would differ in many last bits, which
# later layers turn into visible differences of logprobs.
_COMPUTE = torch.float64


@dataclass(frozen=True)
class _Segments:
    """Cut points of the flattened batch; no segment crosses one."""

    starts: list[int]
    lens: list[int]
    first_of_seq: list[int]  # index of the first segment of each sequence, plus the total
    starts_seq: list[int]  # for each segment: its sequence if it is the first one of it, else -1
    ends_chunk: list[bool]  # for each segment: whether it ends on its sequence's own chunk grid


def _cut(bounds: Sequence[int], chunk_size: int) -> _Segments:
    total = bounds[-1]
    own_grid = {p for a, b in itertools.pairwise(bounds) for p in range(a, b, chunk_size)}
    cuts = sorted({*bounds, *own_grid, *range(0, total, chunk_size)})
    starts = cuts[:-1]
    lens = [b - a for a, b in itertools.pairwise(cuts)]
    first_of_seq = [bisect.bisect_left(starts, b) for b in bounds[:-1]] + [len(starts)]
    starts_seq = [-1] * len(starts)
    for seq, (a, b) in enumerate(itertools.pairwise(bounds)):
        if b > a:
            starts_seq[first_of_seq[seq]] = seq
    ends_chunk = [end in own_grid for end in cuts[1:]]
    return _Segments(starts, lens, first_of_seq, starts_seq, ends_chunk)


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    out: Tensor | None = None,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
    return_track_states: bool = False,
    track_seq_idx: Tensor | None = None,
    track_end_locs: Tensor | None = None,
    track_splits: Sequence[int] | None = None,
):
    """Scan sequences that lie one after another, each from its own initial state.

    Per head: ``h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T`` and ``y_t = C_t h_t + D x_t``.

    Args:
        x: (1, tokens, heads, head_dim).
        dt: (1, tokens, heads); ``dt_bias`` and softplus are applied here, then `dt_limit`.
        A: (heads,), negative.
        B, C: (1, tokens, groups, d_state).
        chunk_size: the grid on which intermediate states are returned. It lies over the
            flattened batch, not over each sequence.
        D: (heads,) or (heads, head_dim).
        initial_states: (sequences, heads, head_dim, d_state), or None for zeros.
        cu_seqlens: (sequences + 1,); None for a single sequence.
        out: (1, tokens, heads, head_dim), written in place.
        track_seq_idx, track_end_locs: (tracked,) sequence and flattened position; the state
            returned is the one after all tokens before that position.
        seq_idx, chunk_indices, chunk_offsets: accepted and unused; `cu_seqlens` says the same.
        track_splits: accepted and unused; a sequence may have several positions in any order.
            SGLang has the parameter with `patches/0410`.

    Returns:
        What the flags ask for, as SGLang's kernel does. With `return_track_states`: (states,
        varlen_states, track_states or None), where ``states[0, c]`` is the state at token
        ``c * chunk_size`` before it is consumed, of the sequence that owns this token
        (1, chunks, heads, head_dim, d_state), varlen_states is each sequence's last state
        (sequences, heads, head_dim, d_state) and track_states is (1, tracked, heads, head_dim,
        d_state). States are of `state_dtype`, by default C's dtype.

    Raises:
        ValueError: if the batch axis is not 1.
    """
    if x.shape[0] != 1:
        raise ValueError(f"only a flattened batch of size 1 is supported, not {x.shape[0]}")
    tokens = x.shape[1]
    bounds = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()
    tracked = [] if track_end_locs is None else track_end_locs.tolist()
    tracked_seqs = [] if track_seq_idx is None else track_seq_idx.tolist()
    cut = _cut(bounds, chunk_size)

    step = dt[0].to(_COMPUTE)
    if dt_bias is not None:
        step = step + dt_bias.to(_COMPUTE)
    if dt_softplus:
        step = softplus(step)
    step = step.clamp(*dt_limit)

    inputs, b = x[0].to(_COMPUTE), B[0].to(_COMPUTE)
    y, before, after = _scan_segments(
        inputs,
        step,
        A.to(_COMPUTE),
        b,
        C[0].to(_COMPUTE),
        cut,
        initial_states,
    )
    if D is not None:
        skip = D.to(_COMPUTE)
        y += inputs * (skip[:, None] if skip.dim() == 1 else skip)
    if z is not None:
        y *= silu(z[0].to(_COMPUTE))
    if out is not None:
        out[0] = y

    dtype = C.dtype if state_dtype is None else state_dtype
    last = _last_states(cut, after, initial_states)
    varlen_states = last.to(dtype)
    grid = [bisect.bisect_left(cut.starts, c) for c in range(0, tokens, chunk_size)]
    states = before[grid].unsqueeze(0).to(dtype)
    if return_track_states:
        track_states = None
        if tracked:
            at = _states_inside(tracked, tracked_seqs, cut, before, after, inputs, step, A, b)
            track_states = at.unsqueeze(0).to(dtype)
        return states, varlen_states, track_states
    final_states = varlen_states[-1:]
    results = []
    if return_intermediate_states:
        results.append(states)
    if return_final_states:
        results.append(final_states)
    if return_varlen_states:
        results.append(varlen_states)
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _last_states(cut: _Segments, after: Tensor, initial_states: Tensor | None) -> Tensor:
    """State of each sequence after all of its tokens."""
    rows = []
    for seq, (first, end) in enumerate(itertools.pairwise(cut.first_of_seq)):
        if end > first:
            rows.append(after[end - 1])
        elif initial_states is not None:
            rows.append(initial_states[seq].to(after.dtype))
        else:
            rows.append(after.new_zeros(after.shape[1:]))
    return torch.stack(rows) if rows else after[:0]


def _states_inside(
    positions: Sequence[int],
    seqs: Sequence[int],
    cut: _Segments,
    before: Tensor,
    after: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
) -> Tensor:
    """State of each sequence after its tokens before each (flattened) position, float32.

    The scan is not cut there, which would cost as much as another chunk: a position's segment
    is read a second time up to it.
    """
    # Position p lies in the segment just before the first one that starts at >= p, if that is
    # one of its sequence.
    segments = [
        max(bisect.bisect_left(cut.starts, p) - 1, cut.first_of_seq[seq])
        for p, seq in zip(positions, seqs, strict=True)
    ]
    lengths = [p - cut.starts[s] for p, s in zip(positions, segments, strict=True)]
    index, starts = torch.tensor(segments), torch.tensor(cut.starts)
    states = advance_mamba2_torch(
        before, index, starts[index], torch.tensor(lengths), x[None], dt[None], A, B[None]
    )
    # Where a segment ends, to the last bit what the scan itself goes on from.
    is_end = torch.tensor([n == cut.lens[s] for n, s in zip(lengths, segments, strict=True)])
    states[is_end] = after[index[is_end]].float()
    return states


def _scan_segments(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    cut: _Segments,
    initial_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y (tokens, heads, head_dim) and the states before and after each segment."""
    tokens, heads, head_dim = x.shape
    d_state = B.shape[-1]
    count = len(cut.starts)
    shape = (count, heads, head_dim, d_state)
    if count == 0:
        return x.new_zeros(x.shape), x.new_zeros(shape), x.new_zeros(shape)
    width = max(cut.lens)
    y = torch.empty_like(x)
    own = x.new_empty(shape)  # what each segment adds to the state
    total_decay = x.new_empty(count, heads)
    decay_to = []  # per block: decay from the segment's start to each token
    per_block = max(1, _BLOCK_ELEMENTS // (heads * width * width))
    blocks = [slice(i, min(i + per_block, count)) for i in range(0, count, per_block)]

    starts = torch.tensor(cut.starts)
    lens = torch.tensor(cut.lens)
    offsets = torch.arange(width)
    valid = offsets < lens[:, None]
    index = (starts[:, None] + offsets).clamp_(max=tokens - 1)
    acausal = torch.ones(width, width, dtype=torch.bool).triu_(1)
    group_of_head = torch.arange(heads) // (heads // B.shape[1])

    outputs = []
    for block in blocks:
        rows = index[block]
        # A padded position has dt = 0: it neither decays the state nor adds to it.
        step = dt[rows] * valid[block][..., None]
        log_decay = (step * A).cumsum(1).transpose(1, 2)  # (segments, heads, width)
        xdt = (x[rows] * step[..., None]).permute(0, 2, 1, 3)
        b = B[rows].permute(0, 2, 1, 3)
        c = C[rows].permute(0, 2, 1, 3)
        mix = log_decay[..., :, None] - log_decay[..., None, :]
        mix.masked_fill_(acausal, -torch.inf).exp_()
        mix *= (c @ b.transpose(-1, -2))[:, group_of_head]
        outputs.append(mix @ xdt)
        from_here = torch.exp(log_decay[..., -1:] - log_decay)
        own[block] = (xdt * from_here[..., None]).transpose(-1, -2) @ b[:, group_of_head]
        total_decay[block] = torch.exp(log_decay[..., -1])
        decay_to.append(torch.exp(log_decay))

    before, after = _carry(own, total_decay, cut, initial_states)
    for block, inner, decay in zip(blocks, outputs, decay_to, strict=True):
        c = C[index[block]].permute(0, 2, 1, 3)[:, group_of_head]
        inner += (c @ before[block].transpose(-1, -2)) * decay[..., None]
        keep = valid[block]
        y[index[block][keep]] = inner.permute(0, 2, 1, 3)[keep]
    return y, before, after


def _carry(
    own: Tensor, total_decay: Tensor, cut: _Segments, initial_states: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Pass states from segment to segment; a sequence's first one takes its initial state.

    On its sequence's chunk grid a state is rounded to float32, as it would be if the call ended
    there and the pool kept it: resuming from a checkpoint on the grid then repeats the uncut
    scan exactly.
    """
    before = torch.empty_like(own)
    after = torch.empty_like(own)
    decay = total_decay[..., None, None]
    for i, seq in enumerate(cut.starts_seq):
        if seq < 0:
            before[i] = after[i - 1]
        elif initial_states is None:
            before[i] = 0
        else:
            before[i] = initial_states[seq]
        torch.addcmul(own[i], before[i], decay[i], out=after[i])
        if cut.ends_chunk[i]:
            after[i] = after[i].float()
    return before, after

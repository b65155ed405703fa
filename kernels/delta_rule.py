"""The delta rule with decay, chunk by chunk and token by token, in plain torch.

What gated delta-net and Kimi delta attention share. Per head, with the state S of shape
(value_dim, key_dim)::

    S' = S diag(exp(log_decay))
    S  = S' + beta (v - S' k) k^T
    y  = scale S q

The decay is one number per head and token, or one per channel of the key. Inside a chunk the
updates of all tokens follow from one triangular system of equations, so that there is no loop over
tokens; see Yang et al., "Gated Delta Networks", section 3.3 (arXiv:2412.06464).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 64
_FEW_TOKENS = 8

# Double precision makes the outputs, once rounded, almost independent of where a sequence was cut
# into calls.
COMPUTE = torch.float64

L2NORM_EPS = 1e-6  # as in SGLang's l2norm of queries and keys


def unit(x: Tensor) -> Tensor:
    """Vectors of the last axis scaled to length one, in double precision."""
    x = x.to(COMPUTE)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2NORM_EPS)


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    scale: float,
    bounds: Sequence[int],
    initial: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run sequences that lie one after another, each from its own initial state.

    On its sequence's chunk grid a state is rounded to float32, as it would be if the call ended
    there and the pool kept it. A chunk is computed apart from all others, so that resuming from a
    checkpoint on the grid repeats the uncut scan bit for bit.

    Args:
        q, k: (tokens, key_heads, key_dim); each serves ``heads // key_heads`` heads.
        v: (tokens, heads, value_dim).
        log_decay: (tokens, heads, 1 or key_dim).
        beta: (tokens, heads).
        bounds: first token of each sequence, then the number of tokens.
        initial: (sequences, heads, value_dim, key_dim).

    Returns:
        y (tokens, heads, value_dim), the states before each chunk of each sequence (chunks, heads,
        value_dim, key_dim) and the last states (sequences, heads, value_dim, key_dim), all float64.
    """
    heads = v.shape[1]
    q, k = (t.to(COMPUTE).repeat_interleave(heads // t.shape[1], dim=1) for t in (q, k))
    by_head = [t.to(COMPUTE).transpose(0, 1) for t in (q, k, v, log_decay, beta[..., None])]
    y = torch.zeros(heads, *v.shape[::2], dtype=COMPUTE)
    initial = initial.to(COMPUTE)
    before = []
    last = torch.empty_like(initial)
    for seq, (first, end) in enumerate(itertools.pairwise(bounds)):
        state = initial[seq]
        for start in range(first, end, CHUNK):
            tokens = slice(start, min(start + CHUNK, end))
            before.append(state)
            # Copies, so that the order of sums does not depend on where the chunk lay.
            chunk = (t[:, tokens].contiguous() for t in by_head)
            y[:, tokens], state = _chunk(*chunk, scale, state)
            if start + CHUNK <= end:
                state = state.float().to(COMPUTE)
        last[seq] = state
    chunks = torch.stack(before) if before else last[:0]
    return y.transpose(0, 1), chunks, last


def scan_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    scale: float,
    bounds: Sequence[int],
    pool: Tensor,
    slots: Tensor,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    """`scan` from and, if `keep`, into the rows of a pool of states.

    Args:
        pool: (slots, heads, value_dim, key_dim).
        slots: (sequences,) row of each; a negative one stands for a state of zero that is not kept.

    Returns:
        y and the states before each chunk.
    """
    real = slots >= 0
    initial = torch.where(real[:, None, None, None], pool[slots.clamp(min=0).long()], 0)
    y, before, last = scan(q, k, v, log_decay, beta, scale, bounds, initial)
    if keep:
        pool[slots[real].long()] = last[real].to(pool.dtype)
    return y, before


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk: arguments (heads, tokens, ...), state (heads, value_dim, key_dim)."""
    total = log_decay.cumsum(1)  # from the start of the chunk to each token
    from_start = total.exp()
    of_keys, of_queries = _products(torch.stack([k, q]), k, total)
    added = _added(of_keys, k, v, from_start, beta, state)
    y = (q * from_start) @ state.mT + of_queries @ added
    return y * scale, _end(k, added, total, state)


def state_after(k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """The state behind up to a chunk of tokens, of which no outputs are needed.

    Args:
        k: (heads, tokens, key_dim).
        v: (heads, tokens, value_dim).
        log_decay: (heads, tokens, 1 or key_dim).
        beta: (heads, tokens, 1).
        state: (heads, value_dim, key_dim).
    """
    total = log_decay.cumsum(1)
    added = _added(_products(k, k, total), k, v, total.exp(), beta, state)
    return _end(k, added, total, state)


def _added(
    of_keys: Tensor, k: Tensor, v: Tensor, from_start: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """What each token adds: beta (v - S' k), where S' holds what the tokens before have added."""
    system = beta * of_keys.tril(-1)
    alone = beta * (v - (k * from_start) @ state.mT)
    return torch.linalg.solve_triangular(system, alone, upper=False, unitriangular=True)


def _end(k: Tensor, added: Tensor, total: Tensor, state: Tensor) -> Tensor:
    """The state behind the chunk, whose decay is ``total`` up to each token."""
    to_end = (total[:, -1:] - total).exp()
    return state * total[:, -1:].exp() + added.mT @ (k * to_end)


def _products(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Inner products of tokens with the decay between the two; zero if `right` is the later one.

    Args:
        left: (..., heads, tokens, key_dim).
        right: (heads, tokens, key_dim).
        total: (heads, tokens, 1 or key_dim), logarithm of the decay up to each token.

    Returns:
        (..., heads, tokens, tokens).
    """
    tokens, channels = total.shape[1:]
    if channels == 1 or tokens <= _FEW_TOKENS:
        gap = total[:, :, None] - total[:, None]
        acausal = torch.ones(tokens, tokens, dtype=torch.bool).triu_(1)
        decay = gap.masked_fill_(acausal[..., None], -torch.inf).exp_()
        if channels == 1:
            return (left @ right.mT) * decay[..., 0]
        return (left[..., :, None, :] * (right[:, None] * decay)).sum(-1)
    # Between the halves every decay passes through one token. Split there, neither factor can
    # overflow, and the products are those of two matrices.
    half = tokens // 2
    old, new = slice(0, half), slice(half, None)
    middle = total[:, half - 1 : half]
    out = left.new_zeros(*left.shape[:-1], tokens)
    out[..., old, old] = _products(left[..., old, :], right[:, old], total[:, old])
    out[..., new, new] = _products(left[..., new, :], right[:, new], total[:, new])
    seen = right[:, old] * (middle - total[:, old]).exp()
    out[..., new, old] = (left[..., new, :] * (total[:, new] - middle).exp()) @ seen.mT
    return out


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    scale: float,
    pool: Tensor,
    slots: Tensor,
    out: Tensor,
) -> None:
    """Advance each row's state by one token (decode).

    Args:
        q, k: (batch, key_heads, key_dim).
        v: (batch, heads, value_dim).
        log_decay: (batch, heads, 1 or key_dim).
        beta: (batch, heads).
        pool: (slots, heads, value_dim, key_dim), changed in place.
        slots: (batch,) slot of each row; a negative one marks a padded row, whose output is zero.
        out: (batch, heads, value_dim), written in place.
    """
    heads = v.shape[1]
    q, k = (t.to(COMPUTE).repeat_interleave(heads // t.shape[1], dim=1) for t in (q, k))
    real = slots >= 0
    state = pool[slots.clamp(min=0).long()].to(COMPUTE)
    state *= log_decay.to(COMPUTE).exp()[:, :, None]
    added = beta[..., None] * (v.to(COMPUTE) - _apply(state, k))
    state += added[..., None] * k[:, :, None]
    out[:] = torch.where(real[:, None, None], _apply(state, q) * scale, 0.0)
    pool[slots[real].long()] = state[real].to(pool.dtype)


def _apply(state: Tensor, vector: Tensor) -> Tensor:
    return (state @ vector[..., None]).squeeze(-1)

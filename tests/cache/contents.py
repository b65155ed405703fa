"""What a slot holds in tests: a digest of 64 bits of the tokens that it stands for.

A state spreads the digest over all elements of all layers, each layer in its own way, so that
a copy which misses a layer or mixes two is seen. Digests are those of a namespace.

Slots are those that the scheduler knows; where memory is unified they are virtual, and are
translated to rows at the moment of the access, as the model's forward does.
"""

import numpy as np
import torch

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xBF58476D1CE4E5B9)
_BYTES = 8


def _mixed(values):
    values = (values ^ (values >> np.uint64(31))) * _ODD
    return values ^ (values >> np.uint64(29))


def _salt(namespace) -> np.uint64:
    text = repr(namespace).encode()
    value = np.frombuffer(text.ljust(-(-len(text) // _BYTES) * _BYTES, b"\0"), np.uint64)
    places = np.arange(1, len(value) + 1, dtype=np.uint64) * _FACTOR
    return _mixed(_mixed(value ^ places).sum(keepdims=True))[0]


_SALTS: dict = {}


def prefix_digests(tokens, namespace=None) -> np.ndarray:
    """Digests of all prefixes of ``tokens``, the empty one first: uint64[len(tokens) + 1]."""
    if namespace not in _SALTS:
        _SALTS[namespace] = _salt(namespace)
    values = np.frombuffer(np.array(tokens, np.int64), np.uint64)
    places = np.arange(1, len(values) + 1, dtype=np.uint64) * _FACTOR
    sums = np.concatenate(([_SALTS[namespace]], _mixed(values ^ places)))
    return _mixed(np.cumsum(sums, dtype=np.uint64))


def signature(tokens, namespace=None) -> int:
    """The digest of a whole sequence."""
    return int(prefix_digests(tokens, namespace)[-1])


def namespace_of(req_or_key):
    """What separates tenants: SGLang's extra key (LoRA adapter included) and salt."""
    return req_or_key.extra_key, req_or_key.cache_salt


def _tensors(pool):
    states = pool.mamba_pool.mamba_cache
    return [*states.conv, states.temporal]


def _pattern(digests: np.ndarray, layers: int) -> torch.Tensor:
    """Bytes of (layers, n, 8) that stand for digests, small enough for bfloat16 to be exact."""
    of_layers = np.arange(1, layers + 1, dtype=np.uint64)[:, None] * _FACTOR
    return torch.from_numpy(
        (_mixed(digests[None] ^ of_layers)).view(np.uint8).reshape(layers, len(digests), _BYTES)
    )


def state_row(pool, slot) -> int:
    """The row of ``pool`` in which state slot ``slot`` is now."""
    row = int(pool.translate_mamba_indices(torch.tensor([int(slot)])))
    assert row >= 0, f"state slot {int(slot)} has no row"
    return row


def write_state(pool, slot, digest: int) -> None:
    """Fill state slot ``slot`` of ``pool``."""
    write_state_row(pool, state_row(pool, slot), digest)


def write_state_row(pool, row, digest: int) -> None:
    """Fill row ``row`` of ``pool``."""
    digests = np.array([digest], np.uint64)
    for tensor in _tensors(pool):
        elements = tensor[:, int(row)].view(len(tensor), -1, _BYTES)
        elements.copy_(_pattern(digests, len(tensor)))


def states_that_differ(pool, slots, digests) -> list[int]:
    """Indices of ``slots`` that hold something else than their digest, in any element."""
    if not len(slots):
        return []
    slots, digests = torch.as_tensor(slots), np.array(digests, np.uint64)
    rows = pool.translate_mamba_indices(slots).long()
    wrong = rows < 0
    for tensor in _tensors(pool):
        found = tensor[:, rows].view(len(tensor), len(slots), -1, _BYTES)
        wrong |= (found != _pattern(digests, len(tensor))[:, :, None]).flatten(2).any(2).any(0)
    return wrong.nonzero().flatten().tolist()


def holds_rows(layers, digest: int) -> bool:
    """Whether ``layers`` (layers, ...), one kind of tensor of a state, holds ``digest``."""
    found = layers.flatten(1).float()
    repeats = -(-found.shape[1] // _BYTES)
    expected = _pattern(np.array([digest], np.uint64), len(found))[:, 0].repeat(1, repeats)
    return bool((found == expected[:, : found.shape[1]]).all())


def holds(pool, slot, digest: int) -> bool:
    """Whether state slot ``slot`` holds ``digest`` in every element."""
    return not states_that_differ(pool, [int(slot)], [digest])


def _kv_buffers(allocator):
    pool = allocator.get_kvcache().full_kv_pool
    return pool.k_buffer[0], pool.v_buffer[0]


def _kv_rows(allocator, slots):
    translate = getattr(allocator, "translate_kv_loc", None)
    return slots if translate is None else translate(slots)


def _halves(digests, dim) -> list[torch.Tensor]:
    """Four bytes of each digest, two for the keys and two for the values, over ``dim`` elements."""
    pattern = np.asarray(digests, np.uint64).reshape(-1, 1).view(np.uint8)
    halves = pattern[:, :2].copy(), pattern[:, 2:4].copy()
    return [torch.from_numpy(half).repeat(1, dim // 2) for half in halves]


def write_kv(allocator, slots, digests) -> None:
    """Fill KV slots: of each token, the digest of the sequence that it ends."""
    buffers, rows = _kv_buffers(allocator), _kv_rows(allocator, slots)
    for buffer, half in zip(buffers, _halves(digests, buffers[0].shape[-1]), strict=True):
        buffer[rows] = half[:, None].to(buffer.dtype)


def kv_differs(allocator, slots, digests) -> bool:
    """Whether any of the KV slots holds something else."""
    rows = _kv_rows(allocator, slots)
    return kv_rows_differ([buffer[rows] for buffer in _kv_buffers(allocator)], digests)


def kv_rows_differ(rows, digests) -> bool:
    """Whether keys or values, each (tokens, ..., dim), are those of something else."""
    return any(
        bool((of_kind.float() != half.view(-1, *[1] * (of_kind.dim() - 2), half.shape[1])).any())
        for of_kind, half in zip(rows, _halves(digests, rows[0].shape[-1]), strict=True)
    )

"""Chained hashes of pages: what is remembered of token sequences, instead of tokens.

The hash of a page stands for the page and everything before it in its namespace, so two
sequences share a prefix of ``n`` pages exactly if their ``n``-th hashes are equal. Equal
on every rank and in every process: no seed of the interpreter goes in.
"""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS = 64

Hashes = NDArray[np.uint64]

_SHIFT = np.uint64(31)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xBF58476D1CE4E5B9)
# One odd random factor per place in a page (multilinear hashing, Thorup and others).
_FACTORS: Hashes = np.random.Generator(np.random.PCG64(2025)).integers(
    0, 2**63, PAGE_TOKENS, dtype=np.uint64
) * np.uint64(2) + np.uint64(1)


def namespace_of(extra_key: str | None, cache_salt: str | None = None) -> int:
    """What separates tenants, adapters and salts: 64 bits of a digest.

    SGLang keeps paths apart by both of its keys (`RadixKey`), and so must whatever is
    remembered of them. They are the client's: any text, lone surrogates included.
    """
    if extra_key is None and cache_salt is None:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for key in (extra_key, cache_salt):
        data = b"" if key is None else b"=" + str(key).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def mixed(values: Hashes) -> Hashes:
    """A bijection of 64 bits that leaves no pattern."""
    values = (values ^ (values >> _SHIFT)) * _ODD
    return values ^ (values >> _SHIFT)


class PageChain:
    """Hashes of the full pages of one growing sequence.

    Args:
        namespace: sequences of different namespaces share nothing; see `namespace_of`.
    """

    __slots__ = ("_salt", "_sums", "hashes", "namespace")

    def __init__(self, namespace: int = 0) -> None:
        self.namespace = namespace
        self._salt = mixed(np.array([namespace], np.uint64) ^ _ODD)
        self._sums = np.empty(0, np.uint64)
        self.hashes: Hashes = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self.hashes)

    def extend(self, tokens: array[int] | NDArray[np.int64], length: int) -> Hashes:
        """Cover the first ``length`` of ``tokens``; returns the hashes, uint64[length // 64].

        Args:
            tokens: the whole sequence so far, int64. What was covered before is not
                read again.
        """
        known, pages = len(self._sums), length // PAGE_TOKENS
        if pages <= known:
            return self.hashes[:pages]
        new = np.frombuffer(
            tokens, np.uint64, (pages - known) * PAGE_TOKENS, 8 * known * PAGE_TOKENS
        )
        places = np.arange(known + 1, pages + 1, dtype=np.uint64) * _FACTOR
        values = mixed((new.reshape(-1, PAGE_TOKENS) * _FACTORS).sum(axis=1) ^ places)
        if known:
            values[:1] += self._sums[-1:]
        # A sum of values that depend on their place: a prefix determines its hash, and a
        # longer one goes on from there.
        self._sums = np.concatenate((self._sums, np.cumsum(values, dtype=np.uint64)))
        self.hashes = mixed(self._sums ^ self._salt)
        return self.hashes

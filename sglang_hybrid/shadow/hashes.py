"""Hashes that stand for pages of tokens, and everything before them.

Not cryptographic: a page that collides with another only makes a shadow cache a little
wrong. What leaves the process is salted (`ring.Ring.to_jsonl`).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

PAGE = 64
"""Tokens of a page."""

HashArray = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15


def mix(values: HashArray) -> HashArray:
    """A bijection of 64 bits that leaves no pattern: the finaliser of SplitMix64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: HashArray = z ^ (z >> np.uint64(31))
    return result


def page_hashes(tokens: NDArray[np.integer], page: int = PAGE) -> HashArray:
    """Chained hashes of the full pages of a sequence; takes about two nanoseconds per token.

    Args:
        tokens: ids of the prompt and the output, integers[T].

    Returns:
        uint64[T // page]: entry i stands for the tokens up to (i + 1) * page.
    """
    pages = len(tokens) // page
    if pages == 0:
        return np.empty(0, np.uint64)
    # Sums of tokens times odd 64-bit weights of their place, first in the page, then of
    # the pages so far: two sequences of tokens below 2^18 collide with chance 2^-46.
    weights = mix(np.arange(page, dtype=np.uint64)) | np.uint64(1)
    sums = np.asarray(tokens[: pages * page]).astype(np.uint64).reshape(pages, page) @ weights
    places = mix(np.arange(page, page + pages, dtype=np.uint64)) | np.uint64(1)
    return mix(np.cumsum(mix(sums) * places, dtype=np.uint64))


def namespace_hash(text: str | bytes | None) -> int:
    """The uint64 that stands for a namespace (a cache salt, an adapter); 0 for none."""
    if not text:
        return 0
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")

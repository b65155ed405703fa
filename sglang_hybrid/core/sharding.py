"""How one layer divides over tensor-parallel shards."""

from __future__ import annotations


def divided(count: int, shards: int, what: str) -> int:
    """The part of ``count`` that one shard holds.

    Raises:
        ValueError: the shards would be unequal.
    """
    if count % shards:
        raise ValueError(f"{count} {what} cannot be divided over {shards} tensor-parallel shards")
    return count // shards


def divided_or_replicated(count: int, shards: int, what: str) -> int:
    """As `divided`, but with fewer than one per shard, each shard holds a copy of one.

    That is how SGLang shards the KV heads of an attention layer and the groups of B and
    C of a Mamba-2 layer.
    """
    return 1 if shards % count == 0 else divided(count, shards, what)

"""Mooncake traces: chained hashes of the blocks of prompts, 512 tokens each.

A line is `{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sglang_hybrid.sim.trace import Trace, TraceBuilder
from sglang_hybrid.sim.traces.blocks import (
    CONTINUED,
    UNIQUE,
    BlockRequest,
    ChainedBuilder,
    full_sequences,
    granularity,
)
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import Entry, Source, member

BLOCK_TOKENS = 512
_MS_PER_SECOND = 1000


def read_mooncake(source: Source, options: ReadOptions) -> Trace:
    """Requests in the order of the file."""
    requests: list[BlockRequest] = []
    entries: list[Entry] = []
    for entry in source:
        try:
            requests.append(_request(entry))
            entries.append(entry)
        except ValueError as error:
            source.reject(entry, error)
    builder = TraceBuilder(source.name, BLOCK_TOKENS)
    builder.assumptions += [
        granularity(BLOCK_TOKENS),
        CONTINUED if options.outputs == "continued" else UNIQUE,
    ]
    if requests:
        chained = ChainedBuilder(builder)
        requests = _renumbered(requests)
        sequences, _ = full_sequences(requests, BLOCK_TOKENS, options.outputs)
        for entry, request, sequence in zip(entries, requests, sequences, strict=True):
            try:
                chained.add(sequence, request.input_len, request.output_len, arrival=request.time)
            except ValueError as error:
                source.reject(entry, error)
    return builder.build()


def _renumbered(requests: list[BlockRequest]) -> list[BlockRequest]:
    """The same with ids from 0 on, whatever the hashes were."""
    ends = np.cumsum([len(request.blocks) for request in requests])
    _, ids = np.unique(np.concatenate([r.blocks for r in requests]), return_inverse=True)
    parts = np.split(ids.astype(np.int64), ends[:-1])
    return [replace(r, blocks=part) for r, part in zip(requests, parts, strict=True)]


def _request(entry: Entry) -> BlockRequest:
    input_len = member(entry.value, "input_length", int)
    output_len = member(entry.value, "output_length", int)
    ids = member(entry.value, "hash_ids", list)
    time = member(entry.value, "timestamp", int, float) / _MS_PER_SECOND
    if input_len < 1 or output_len < 0:
        raise ValueError(f"lengths {input_len} and {output_len}; allowed: from 1, from 0")
    if not all(type(block) is int and -(2**63) <= block < 2**63 for block in ids):
        raise ValueError('"hash_ids" holds something else than integers of 64 bits')
    blocks = -(-input_len // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise ValueError(
            f"{len(ids)} ids for {input_len} tokens; {blocks} blocks of {BLOCK_TOKENS} are needed"
        )
    # The hash of a partial block cannot equal that of the full block it grows into.
    full = np.array(ids[: input_len // BLOCK_TOKENS], dtype=np.int64)
    return BlockRequest(time, input_len, output_len, full)

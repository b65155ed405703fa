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
    renumbered,
)
from sglang_hybrid.sim.traces.memory import CHAINED_BYTES, REQUEST_BYTES
from sglang_hybrid.sim.traces.options import ReadOptions
from sglang_hybrid.sim.traces.source import Entry, Source, TraceError, member, seconds, tokens

BLOCK_TOKENS = 512
_MS_PER_SECOND = 1000


def read_mooncake(source: Source, options: ReadOptions) -> Trace:
    """Requests in the order of the file."""
    requests: list[BlockRequest] = []
    entries: list[Entry] = []
    for entry in source:
        try:
            request = _request(entry)
            blocks = -(-(request.input_len + request.output_len) // BLOCK_TOKENS)
            size = 2 * REQUEST_BYTES + CHAINED_BYTES * blocks
            source.memory.keep(size, f"{entry.file}:{entry.place}")
            requests.append(request)
            entries.append(replace(entry, value=None))
        except TraceError:
            raise
        except ValueError as error:
            source.reject(entry, error)
    builder = TraceBuilder(source.name, BLOCK_TOKENS)
    builder.assumptions += [
        granularity(BLOCK_TOKENS),
        CONTINUED if options.outputs == "continued" else UNIQUE,
    ]
    if requests:
        chained = ChainedBuilder(builder)
        requests = renumbered(requests)
        sequences, _ = full_sequences(requests, BLOCK_TOKENS, options.outputs)
        for entry, request, sequence in zip(entries, requests, sequences, strict=True):
            try:
                chained.add(sequence, request.input_len, request.output_len, arrival=request.time)
            except ValueError as error:
                source.reject(entry, error)
    return builder.build()


def _request(entry: Entry) -> BlockRequest:
    input_len = tokens(entry.value, "input_length", 1)
    output_len = tokens(entry.value, "output_length", 0)
    ids = member(entry.value, "hash_ids", list)
    time = seconds(entry.value, "timestamp", _MS_PER_SECOND)
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

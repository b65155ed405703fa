"""Where states are wanted, as docs/simulator.md states it."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.sim.admission import Admission

from .reference_tree import Token


def plan(
    admission: Admission,
    sequence: Sequence[Token],
    input_len: int,
    matched: int,
    hit: int,
    system_len: int,
    seen: Sequence[Sequence[Token]],
) -> list[tuple[int, Kind]]:
    """Depths and kinds, in order of depth. ``seen``: full sequences of earlier requests."""
    total = len(sequence)
    kinds: dict[int, Kind] = {}

    def want(depth: int, kind: Kind) -> None:
        if depth > hit:
            kinds.setdefault(depth, kind)

    least = hit + admission.min_gain_tokens
    if admission.branch:
        depth = None
        if matched < input_len:
            depth = floor(matched, admission.branch)
        elif admission.branch_full:
            depth = floor(input_len - 1, admission.branch)
        if depth is not None and depth >= least:
            want(depth, Kind.BRANCH)
    if admission.ghost_forks:
        others = [*seen, sequence] if admission.ghost_self else seen
        deep = [depth for depth in forks(sequence[:input_len], others) if depth >= least]
        for depth in deep[-admission.ghost_forks :]:
            want(depth, Kind.BRANCH)
    if admission.system_end and least <= system_len < input_len:
        want(system_len, Kind.SYSTEM_END)
    if admission.block_tokens:
        for depth in range(admission.block_tokens, total + 1, admission.block_tokens):
            want(depth, Kind.CHUNK)
    if admission.decode_end == 1:
        want(total, Kind.DECODE_END)
    elif admission.decode_end > 1 and floor(total, admission.decode_end) > input_len:
        want(floor(total, admission.decode_end), Kind.DECODE_END)
    if admission.prompt_end and not admission.chunk_tokens:
        want(floor(input_len, admission.prompt_end), Kind.PROMPT_END)
    if admission.chunk_tokens:
        branches = [d for d, kind in kinds.items() if kind == Kind.BRANCH]
        for start in range(hit, input_len, admission.chunk_tokens):
            end = min(start + admission.chunk_tokens, input_len)
            if admission.chunk_or_branch and any(start < d <= end for d in branches):
                continue
            depth = start + floor(end - start, admission.prompt_end or 1)
            if depth == start:
                continue
            if end < input_len:
                want(depth, Kind.CHUNK)
            elif admission.prompt_end:
                want(depth, Kind.PROMPT_END)
    return sorted(kinds.items())


def floor(value: int, grid: int) -> int:
    return value - value % grid


def forks(prompt: Sequence[Token], seen: Sequence[Sequence[Token]]) -> list[int]:
    """Depths on the prompt (below its end) at which two continuations were seen."""
    return [
        depth
        for depth in range(len(prompt))
        if len({s[depth] for s in seen if len(s) > depth and s[:depth] == prompt[:depth]}) >= 2
    ]

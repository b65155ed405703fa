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
    kinds = before_chunks(admission, sequence, input_len, matched, hit, system_len, seen)

    def want(depth: int, kind: Kind) -> None:
        if depth > hit:
            kinds.setdefault(depth, kind)

    for depth, kind in blocks(admission, hit, len(sequence)) + decode_end(
        admission, sequence, input_len
    ):
        want(depth, kind)
    if admission.prompt_end and not admission.chunk_tokens:
        want(floor(input_len, admission.prompt_end), Kind.PROMPT_END)
    if admission.chunk_tokens:
        branches = [d for d, kind in kinds.items() if kind == Kind.BRANCH]
        for start in range(hit, input_len, admission.chunk_tokens):
            end = min(start + admission.chunk_tokens, input_len)
            if admission.chunk_or_branch and any(start < d <= end for d in branches):
                continue
            for depth, kind in chunk_end(admission, start, end, input_len):
                want(depth, kind)
    return sorted(kinds.items())


def plan_prompt(
    admission: Admission,
    sequence: Sequence[Token],
    input_len: int,
    matched: int,
    hit: int,
    system_len: int,
    seen: Sequence[Sequence[Token]],
    branch_kind: Kind,
) -> list[tuple[int, Kind]]:
    """With two pools: positions of the prompt; its last chunk may be followed by a decode end."""
    kinds = before_chunks(
        admission, sequence, input_len, matched, hit, system_len, seen, branch_kind
    )
    branches = [d for d, kind in kinds.items() if kind in (Kind.BRANCH, Kind.DECODE_END)]
    for depth, kind in blocks(admission, hit, input_len):
        kinds.setdefault(depth, kind)
    cuts = sorted(kinds)
    if admission.prompt_end and not admission.chunk_tokens:
        depth = floor(input_len, admission.prompt_end)
        if depth > hit:
            kinds.setdefault(depth, Kind.PROMPT_END)
    start = hit
    while admission.chunk_tokens and start < input_len:
        end = min(start + admission.chunk_tokens, input_len)
        if admission.chunk_or_branch:
            skips = any(start < d <= end for d in branches)
        else:
            skips, end = False, min([end, *(d for d in cuts if d > start)])
        for depth, kind in [] if skips else chunk_end(admission, start, end, input_len):
            kinds.setdefault(depth, kind)
        start = end
    return sorted(kinds.items())


def plan_output(
    admission: Admission, sequence: Sequence[Token], input_len: int
) -> list[tuple[int, Kind]]:
    """With two pools: positions of the output."""
    kinds = dict(blocks(admission, input_len, len(sequence)))
    for depth, kind in decode_end(admission, sequence, input_len):
        kinds.setdefault(depth, kind)
    return sorted(kinds.items())


def blocks(admission: Admission, beyond: int, until: int) -> list[tuple[int, Kind]]:
    block = admission.block_tokens
    if not block:
        return []
    return [(d, Kind.CHUNK) for d in range(block, until + 1, block) if d > beyond]


def decode_end(
    admission: Admission, sequence: Sequence[Token], input_len: int
) -> list[tuple[int, Kind]]:
    grid, total = admission.decode_end, len(sequence)
    if grid == 1 or (grid > 1 and floor(total, grid) > input_len):
        return [(floor(total, grid), Kind.DECODE_END)]
    return []


def chunk_end(admission: Admission, start: int, end: int, input_len: int) -> list[tuple[int, Kind]]:
    """The state at the end of one prefill chunk, if it gets one."""
    depth = start + floor(end - start, admission.prompt_end or 1)
    if depth == start or (end == input_len and not admission.prompt_end):
        return []
    return [(depth, Kind.CHUNK if end < input_len else Kind.PROMPT_END)]


def before_chunks(
    admission: Admission,
    sequence: Sequence[Token],
    input_len: int,
    matched: int,
    hit: int,
    system_len: int,
    seen: Sequence[Sequence[Token]],
    branch_kind: Kind = Kind.BRANCH,
) -> dict[int, Kind]:
    """Branch points, forks and the end of the system message."""
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
            want(depth, branch_kind)
    if admission.ghost_forks:
        others = [*seen, sequence] if admission.ghost_self else seen
        deep = [depth for depth in forks(sequence[:input_len], others) if depth >= least]
        for depth in deep[-admission.ghost_forks :]:
            want(depth, Kind.BRANCH)
    if admission.system_end and least <= system_len < input_len:
        want(system_len, Kind.SYSTEM_END)
    return kinds


def floor(value: int, grid: int) -> int:
    return value - value % grid


def forks(prompt: Sequence[Token], seen: Sequence[Sequence[Token]]) -> list[int]:
    """Depths on the prompt (below its end) at which two continuations were seen."""
    return [
        depth
        for depth in range(len(prompt))
        if len({s[depth] for s in seen if len(s) > depth and s[:depth] == prompt[:depth]}) >= 2
    ]

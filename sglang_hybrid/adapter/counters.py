"""What the cache did, as numbers that `/server_info` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sglang_hybrid.core.checkpoints import Kind


@dataclass
class Counters:
    """Totals since start-up; never reset."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    branch_checkpoints: int = 0
    ghost_fork_checkpoints: int = 0
    system_end_checkpoints: int = 0
    prompt_end_checkpoints: int = 0
    chunk_checkpoints: int = 0
    decode_end_checkpoints: int = 0
    skipped_checkpoints: int = 0  # no slot could be had
    declined_checkpoints: int = 0  # not worth the slot they would have taken
    branch_cuts: int = 0  # prefills cut at a branch point
    branch_waits: int = 0  # requests that waited a round for another's cut
    slot_waits: int = 0  # requests that waited for free state slots
    missed_copies: int = 0  # hits given up because no slot could be had for the copy
    evicted_states: int = 0
    evicted_leaves: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def count_checkpoint(self, kind: Kind) -> None:
        name = f"{kind.name.lower()}_checkpoints"
        setattr(self, name, getattr(self, name) + 1)

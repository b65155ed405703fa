"""What the cache did, as numbers that `/server_info` and the metrics show."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sglang_hybrid.adapter.short_hits import ShortHits
from sglang_hybrid.core.checkpoints import Kind

_CHECKPOINTS_OF = {kind: f"{kind.name.lower()}_checkpoints" for kind in Kind}
_HITS_OF = {kind: f"{kind.name.lower()}_hits" for kind in Kind}


@dataclass
class Counters:
    """Totals since start-up; never reset.

    Attributes:
        short: why requests hit less than their prompt; not part of `as_dict`.
    """

    requests: int = 0
    prefill_passes: int = 0  # forwards that computed a part of a prompt, per request
    prompt_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: int = 0  # their KV was there, a state was not
    prompt_flops: float = 0.0
    saved_flops: float = 0.0
    branch_checkpoints: int = 0
    ghost_fork_checkpoints: int = 0
    system_end_checkpoints: int = 0
    prompt_end_checkpoints: int = 0
    chunk_checkpoints: int = 0
    decode_end_checkpoints: int = 0
    branch_hits: int = 0  # requests that started from a checkpoint of the kind
    ghost_fork_hits: int = 0
    system_end_hits: int = 0
    prompt_end_hits: int = 0
    chunk_hits: int = 0
    decode_end_hits: int = 0
    skipped_checkpoints: int = 0  # no slot could be had
    declined_checkpoints: int = 0  # not worth the slot they would have taken
    unwanted_checkpoints: int = 0  # the configuration says never
    rounded_checkpoints: int = 0  # taken at the page boundary before the wanted token
    unwritten_checkpoints: int = 0  # dropped, because the forward did not write their state
    branch_cuts: int = 0  # prefills cut at a branch point
    branch_waits: int = 0  # requests that waited a round for another's cut
    slot_waits: int = 0  # requests that waited for free state slots
    missed_copies: int = 0  # hits given up because no slot could be had for the copy
    evicted_states: int = 0
    evicted_state_leaves: int = 0  # of these, for their slot: the last of their path
    evicted_state_interiors: int = 0  # and those with checkpoints below them
    evicted_unused: int = 0  # states that were never hit
    evicted_leaves: int = 0  # for their KV
    copied_states: int = 0  # to the host
    demoted_states: int = 0  # evicted, while the host has a copy
    reloaded_states: int = 0  # from the host, because a request starts from them
    missed_reloads: int = 0  # hits on the host given up for want of room on the device
    host_evicted_states: int = 0  # by the host, which had the only copy
    short: ShortHits = field(default_factory=ShortHits)

    def as_dict(self) -> dict[str, int | float]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "short"}

    def count_checkpoint(self, kind: Kind) -> None:
        self._increment(_CHECKPOINTS_OF[kind])

    def count_hit(self, kind: Kind) -> None:
        self._increment(_HITS_OF[kind])

    def count_state_victim(self, live_children: int) -> None:
        if live_children:
            self.evicted_state_interiors += 1
        else:
            self.evicted_state_leaves += 1

    def _increment(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

"""In which order arms, workloads and seeds run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.serving.arms import Arm
from bench.serving.workloads import POOLS, Workload


@dataclass(frozen=True)
class Block:
    """What one server serves, before the next is started.

    Attributes:
        pools: of the server, one of `POOLS`.
        workloads: in their order; the cache is flushed before each.
    """

    seed: int
    arm: Arm
    pools: str
    workloads: tuple[Workload, ...]


def blocks(
    arms: Sequence[Arm], workloads: Sequence[Workload], seeds: Sequence[int]
) -> Iterator[Block]:
    """Seed by seed, so that arms take turns; each seed begins with another arm.

    Within a seed all arms of one kind of pools follow each other: what is compared lies close
    together in time.
    """
    for turn, seed in enumerate(seeds):
        first = turn % len(arms)
        rotated = [*arms[first:], *arms[:first]]
        for pools, of_pools in by_pools(workloads):
            for arm in rotated:
                yield Block(seed, arm, pools, of_pools)


def by_pools(workloads: Sequence[Workload]) -> Iterator[tuple[str, tuple[Workload, ...]]]:
    """The workloads of each kind of pools, where there are some."""
    for pools in POOLS:
        of_pools = tuple(workload for workload in workloads if workload.pools == pools)
        if of_pools:
            yield pools, of_pools

"""Shadow caches that serve what a server serves, window by window.

The simulator works on the union tree of all requests. Here that is the tree of the last
requests and the new window, compiled anew for every window, and every cache takes over
what it holds into it (`SerialReplay.go_on_with`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.hit_density import DensityTable
from sglang_hybrid.core.pages import mixed
from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.ring import MAX_PAGES, MAX_REQUESTS, Ring
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.tuning import Arm, saved_flops
from sglang_hybrid.sim.union_tree import UnionTree, compile_trace

Objective = Literal["flops", "tokens"]


@dataclass(frozen=True)
class Savings:
    """What the arms would have saved in one window, or in a search.

    Attributes:
        saved: per arm, prefill FLOPs or tokens, as the objective says.
        hits: per arm, tokens reused.
        realised, realised_hits: the same of what the server really reused.
    """

    saved: tuple[float, ...]
    hits: tuple[int, ...]
    realised: float
    realised_hits: int


class OnlineShadows:
    """One simulated cache per arm.

    Args:
        costs: of the model, of one tensor-parallel shard.
        admission: of the server; the arms may vary it.
        budget: two pools, as the server has them, or bytes.
        arms: what is simulated.
        objective: what counts as saved.
        max_requests, max_pages: of the requests that are remembered. What only older ones
            used is lost to the shadows.

    Raises:
        ValueError: an arm that knows the future, or another objective.
    """

    def __init__(
        self,
        costs: ModelCosts,
        admission: Admission,
        budget: Budget,
        arms: Sequence[Arm],
        *,
        objective: Objective = "flops",
        max_requests: int = MAX_REQUESTS,
        max_pages: int = MAX_PAGES,
    ) -> None:
        if objective not in ("flops", "tokens"):
            raise ValueError(f"objective {objective!r} is not allowed; allowed: 'flops', 'tokens'")
        for arm in arms:
            if arm.policy.kind == "offline":
                raise ValueError(f"arm {arm.name!r} knows the future, which a server does not")
        self.costs, self.admission, self.budget = costs, admission, budget
        self.arms, self.objective = tuple(arms), objective
        self.ring = Ring(max_requests, max_pages)
        self.reset()

    def reset(self) -> None:
        """The server's cache was emptied: forget all requests, and what the shadows hold."""
        self.ring.clear()
        self.replays: list[SerialReplay] = []

    def remember(self, window: Window) -> Savings:
        """Take in a window for a later `search` only; nothing is saved by the arms."""
        self.ring.append(window)
        return self._savings([], window.hit)

    def step(self, window: Window) -> Savings:
        """Serve a window with every arm.

        Raises:
            ValueError: pages of another size than before.
        """
        dropped = self.ring.append(window)
        known = self.ring.window()
        if known is None or not len(window):
            return self._savings([np.zeros(0, np.int64)] * len(self.arms), window.hit)
        tree = compile_trace(trace_of(known))
        if not self.replays:
            self.replays = [self._replay(tree, arm) for arm in self.arms]
        else:
            for replay in self.replays:
                replay.go_on_with(tree, dropped)
        for replay in self.replays:
            replay.advance(len(known))
        new = slice(len(known) - len(window), len(known))
        return self._savings([replay.served.hits[new] for replay in self.replays], window.hit)

    def search(self) -> Savings:
        """Let every arm serve all remembered requests, from an empty cache on."""
        known = self.ring.window()
        if known is None:
            empty = np.zeros(0, np.int64)
            return self._savings([empty] * len(self.arms), empty)
        tree = compile_trace(trace_of(known))
        hits = []
        for arm in self.arms:
            replay = self._replay(tree, arm)
            replay.advance(len(known))
            hits.append(replay.served.hits)
        return self._savings(hits, known.hit)

    def tables(self) -> dict[int, DensityTable]:
        """What the arms that learn hit densities have learned, by the arm's index."""
        return {
            i: replay.cache.table
            for i, (arm, replay) in enumerate(zip(self.arms, self.replays, strict=False))
            if arm.policy.kind == "density"
        }

    def _replay(self, tree: UnionTree, arm: Arm) -> SerialReplay:
        return SerialReplay(tree, self.costs, arm.policy, arm.admits(self.admission), self.budget)

    def _savings(self, hits: Sequence[NDArray[np.int64]], real: NDArray[np.int64]) -> Savings:
        return Savings(
            tuple(self._saved(own) for own in hits),
            tuple(int(own.sum()) for own in hits),
            self._saved(real),
            int(real.sum()),
        )

    def _saved(self, hits: NDArray[np.int64]) -> float:
        return saved_flops(self.costs, hits) if self.objective == "flops" else float(hits.sum())


def trace_of(window: Window) -> Trace:
    """The requests of a window as a trace whose symbols are pages.

    Two symbols are the same if the pages' hashes are and everything before them, down to
    the namespace. What lies beyond a request's pages occurs once.
    """
    requests = len(window)
    counts = np.diff(window.offsets)
    symbols_of = -(-(window.input_len + window.output_len) // window.page)
    offsets = np.concatenate(([0], np.cumsum(symbols_of)))
    known = np.arange(len(window.pages)) + np.repeat(offsets[:-1] - window.offsets[:-1], counts)
    symbols = np.empty(offsets[-1], np.uint64)
    symbols[known] = window.pages
    # The first page leads to all others, so it alone has to tell the namespaces apart.
    starts = offsets[:-1][counts > 0]
    symbols[starts] ^= mixed(window.namespace[counts > 0])
    is_own = np.ones(len(symbols), np.bool_)
    is_own[known] = False
    own = np.flatnonzero(is_own)
    symbols[own] = mixed(np.arange(len(own), dtype=np.uint64))
    return Trace(
        "server",
        window.page,
        symbols.view(np.int64),
        offsets,
        parent=np.full(requests, -1, np.int64),
        keep=np.zeros(requests, np.int64),
        input_len=window.input_len,
        output_len=window.output_len,
        arrival=np.full(requests, np.nan),
        session=np.full(requests, -1, np.int64),
        system_len=window.system_len,
    )

"""Shadow caches that serve what a server serves, window by window.

The simulator works on the union tree of all requests. Here that is the tree of the last
requests and the new window, compiled anew for every window, and every cache takes over
what it holds into it (`SerialReplay.go_on_with`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.hit_density import DensityTable
from sglang_hybrid.core.pages import mixed
from sglang_hybrid.shadow.messages import Settings
from sglang_hybrid.shadow.records import Window
from sglang_hybrid.shadow.ring import Ring
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.trace import Trace
from sglang_hybrid.sim.tuning import Arm, saved_flops
from sglang_hybrid.sim.union_tree import UnionTree, compile_trace


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
        settings: what is simulated; requests older than its limits are forgotten, and what
            only they used is lost to the shadows.

    Raises:
        ValueError: an arm that knows the future, or another objective.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.objective not in ("flops", "tokens"):
            raise ValueError(
                f"objective {settings.objective!r} is not allowed; allowed: 'flops', 'tokens'"
            )
        for arm in settings.arms:
            if arm.policy.kind == "offline":
                raise ValueError(f"arm {arm.name!r} knows the future, which a server does not")
        self.settings = settings
        self.ring = Ring(settings.max_requests, settings.max_pages)
        self.clear()

    def clear(self) -> None:
        """The server's cache was emptied: forget all requests, and what the shadows hold."""
        self.ring.clear()
        self.replays: list[SerialReplay] = []

    def step(self, window: Window) -> Savings:
        """Serve a window with every arm; in bootstrap mode only remember it.

        Raises:
            ValueError: pages of another size than before.
        """
        dropped = self.ring.append(window)
        known = self.ring.window()
        if self.settings.is_bootstrap or known is None:
            return self._savings([], window.hit)
        tree = compile_trace(trace_of(known))
        if self.replays:
            for replay in self.replays:
                replay.go_on_with(tree, dropped)
        else:
            self.replays = [self._replay(tree, arm) for arm in self.settings.arms]
        for replay in self.replays:
            replay.advance(len(known))
        new = slice(len(known) - len(window), len(known))
        return self._savings([replay.served.hits[new] for replay in self.replays], window.hit)

    def search(self) -> Savings:
        """Let every arm serve all remembered requests, from an empty cache on."""
        known = self.ring.window()
        if known is None:
            empty = np.zeros(0, np.int64)
            return self._savings([empty] * len(self.settings.arms), empty)
        tree = compile_trace(trace_of(known))
        hits = []
        for arm in self.settings.arms:
            replay = self._replay(tree, arm)
            replay.advance(len(known))
            hits.append(replay.served.hits)
        return self._savings(hits, known.hit)

    def tables(self) -> dict[int, DensityTable]:
        """What the arms that learn hit densities have learned, by the arm's index."""
        return {
            i: replay.cache.table
            for i, (arm, replay) in enumerate(zip(self.settings.arms, self.replays, strict=False))
            if arm.policy.kind == "density"
        }

    def _replay(self, tree: UnionTree, arm: Arm) -> SerialReplay:
        settings = self.settings
        admission = arm.admits(settings.admission)
        return SerialReplay(tree, settings.costs, arm.policy, admission, settings.budget)

    def _savings(self, hits: Sequence[NDArray[np.int64]], real: NDArray[np.int64]) -> Savings:
        return Savings(
            tuple(self._saved(own) for own in hits),
            tuple(int(own.sum()) for own in hits),
            self._saved(real),
            int(real.sum()),
        )

    def _saved(self, hits: NDArray[np.int64]) -> float:
        if self.settings.objective == "tokens":
            return float(hits.sum())
        return saved_flops(self.settings.costs, hits)


def trace_of(window: Window) -> Trace:
    """The requests of a window as a trace whose symbols are pages.

    Two symbols are the same if the pages' hashes are and everything before them, down to
    the namespace. What lies beyond a request's pages occurs once.
    """
    requests = len(window)
    symbols_of = -(-(window.input_len + window.output_len) // window.page)
    offsets = np.concatenate(([0], np.cumsum(symbols_of)))
    pages_of = np.diff(window.offsets)
    missing = symbols_of - pages_of
    own = mixed(np.arange(missing.sum(), dtype=np.uint64))
    symbols = np.insert(window.pages, np.repeat(window.offsets[1:], missing), own)
    # The first page leads to all others, so it alone has to tell the namespaces apart.
    has_pages = pages_of > 0
    symbols[offsets[:-1][has_pages]] ^= mixed(window.namespace[has_pages])
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

"""Where checkpoints are wanted on a prompt: branch points, forks seen long ago, system end."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sglang_hybrid.adapter.guards import Guard, guarded, nothing
from sglang_hybrid.adapter.system_end import SystemEnd
from sglang_hybrid.config import CacheConfig
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.ends import KnownEnds
from sglang_hybrid.core.forks import ForkIndex
from sglang_hybrid.core.pages import PAGE_TOKENS, Hashes, PageChain, namespace_of
from sglang_hybrid.core.places import Place

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.radix_cache import RadixKey


def chain_of(req: Req) -> PageChain:
    """The chained page hashes of ``req``, as far as they were needed until now."""
    chain = getattr(req, "hybrid_pages", None)
    if chain is None:
        chain = req.hybrid_pages = PageChain(namespace_of(req.extra_key, req.cache_salt))
    return chain


def known_pages(req: Req) -> Hashes | None:
    """The page hashes of ``req`` that were needed until now; None if none were."""
    chain: PageChain | None = getattr(req, "hybrid_pages", None)
    return None if chain is None else chain.hashes


def _plan_branch(
    _wanted: WantedCheckpoints, req: Req, _key: RadixKey, _hit: int, branch: Place | None
) -> None:
    """All that can be planned without a history."""
    req.hybrid_wanted = () if branch is None else (branch,)


class WantedCheckpoints:
    """Plans the checkpoints inside a prompt, and remembers what planning needs.

    The plan of a request stands on the request (``hybrid_wanted``), as do the chained
    hashes of its pages (``hybrid_pages``), which are computed once per request.

    Args:
        guard: without it, only branch points are wanted.

    Attributes:
        forks: forks ever seen; None where ghost forks are off.
        ends: of earlier sequences; None where no policy asks for them.
        system_end: tells the end of the system message; None where it is off or the
            template does not tell.
    """

    def __init__(self, config: CacheConfig, guard: Guard) -> None:
        self.guard = guard
        self._min_gain = config.min_gain_tokens
        self.forks = ForkIndex() if config.ghost_forks else None
        self.ends = KnownEnds() if config.policy in ("auto", "density") else None
        self.system_end: SystemEnd | None = None

    def clear(self) -> None:
        """Forget the forks and ends."""
        if self.forks is not None:
            self.forks.clear()
        if self.ends is not None:
            self.ends.clear()

    @staticmethod
    def of(req: Req) -> tuple[Place, ...]:
        """The plan of ``req``, by rising depth."""
        return getattr(req, "hybrid_wanted", ())

    @guarded(_plan_branch)
    def plan(self, req: Req, key: RadixKey, hit: int, branch: Place | None) -> None:
        """``req``'s prompt was matched up to a checkpoint at ``hit`` tokens.

        Args:
            key: what was matched; empty for a request that must not share anything.
            branch: the branch point of the match, if it has one.
        """
        places = {} if branch is None else dict([branch])
        if len(key):
            nearest, farthest = hit + self._min_gain, len(req.full_untruncated_fill_ids) - 1
            end = self.system_end_of(req)
            if end is not None and nearest <= end <= farthest:
                places.setdefault(end, Kind.SYSTEM_END)
            if self.forks is not None:
                fork = self.forks.deepest(self.pages_of(req), nearest, farthest)
                # Of a fork inside a page only its beginning is known; what is wanted
                # in the page already is that fork itself.
                if fork is not None and not any(0 <= p - fork < PAGE_TOKENS for p in places):
                    places[fork] = Kind.GHOST_FORK
        req.hybrid_wanted = tuple(sorted(places.items()))

    @guarded(lambda *_: 0)
    def turn_of(self, req: Req) -> int:
        """0, 1 or 2: how far the conversation of ``req`` is, as far as it matters."""
        return 0 if self.ends is None else self.ends.turn(self.pages_of(req))

    @guarded(nothing)
    def observe_prompt(self, req: Req) -> None:
        """``req`` was admitted: its prompt is history for those after it."""
        if self.forks is not None:
            self.forks.observe(self.pages_of(req))

    @guarded(nothing)
    def observe_sequence(self, req: Req, length: int) -> None:
        """``req`` finished, and ``length`` tokens of its prompt and output are kept."""
        if self.forks is None and self.ends is None:
            return
        pages = self.pages_of(req, length)
        if self.forks is not None:
            self.forks.observe(pages)
        if self.ends is not None:
            self.ends.observe(pages)

    @staticmethod
    def pages_of(req: Req, length: int | None = None) -> Hashes:
        """Chained hashes of the full pages of ``req``'s first ``length`` tokens.

        By default of its prompt, or of prompt and output once it was retracted.
        """
        tokens, chain = req.full_untruncated_fill_ids, chain_of(req)
        if length is None:
            length = len(tokens)
        elif length > len(tokens):
            tokens = req.origin_input_ids + req.output_ids
        return chain.extend(tokens, length)

    def system_end_of(self, req: Req) -> int | None:
        """Tokens up to the end of ``req``'s system message, None where it is not known."""
        if self.system_end is None:
            return None
        if not hasattr(req, "hybrid_system_end"):
            prompt: array[int] = req.origin_input_ids
            req.hybrid_system_end = self.system_end.find(prompt)
        return req.hybrid_system_end

"""What a server should report as `cached_tokens`, by brute force.

`ExpectedCache` plays one request after another against a cache with unlimited
pools, in the plainest way: sets of token prefixes, no tree. It is an independent
statement of the admission rules, for `hybrid-marconi verify` to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

STATE_KEY = "hybrid_marconi"
"""Key of our cache in every entry of `internal_states` of `/server_info`."""

MODES = ("exact", "split", "chunk")
"""Values of `branch_checkpoint`."""


class UnsupportedServer(ValueError):
    """A server that no expectation can be stated for; its message is one line."""


@dataclass(frozen=True)
class ServerTraits:
    """What decides which states a server keeps.

    Attributes:
        mode: `branch_checkpoint` in force.
        page_size: tokens per page of KV.
        checkpoint_grid: tokens between states that a prefill can keep, counted from
            the first token it computes.
        decode_grid: tokens between states that a sequence can end with, counted from
            its start.
        chunk_tokens: tokens of one prefill chunk; None if prefill is not chunked.
        min_gain_tokens, prompt_end, chunk_boundary: as in `--cache-config`, or as the
            tuner of the server has put in force.
        max_prompt_tokens: the longest prompt that the server accepts.
    """

    mode: str = "exact"
    page_size: int = 1
    checkpoint_grid: int = 1
    decode_grid: int = 1
    chunk_tokens: int | None = None
    min_gain_tokens: int = 128
    prompt_end: Literal["auto", "always", "never"] = "auto"
    chunk_boundary: Literal["first_victims", "never"] = "first_victims"
    max_prompt_tokens: int = 1 << 20

    @classmethod
    def from_server_info(cls, info: Mapping[str, Any]) -> ServerTraits:
        """Traits of a server with our cache, by its reply of `/server_info`.

        Raises:
            UnsupportedServer: not our cache, or requests may go to different caches.
        """
        status = cache_status(info)
        if status is None:
            raise UnsupportedServer(
                "the server does not run --cache hybrid-marconi (no hybrid_marconi in "
                "internal_states of /server_info); start it with that flag, or use --any-cache "
                "to check only that hits and misses agree"
            )
        mode, page, chunk = (
            status["branch_checkpoint"],
            info["page_size"],
            info["chunked_prefill_size"],
        )
        if mode not in MODES:
            raise UnsupportedServer(
                f"unknown branch_checkpoint {mode!r}; known: {', '.join(MODES)}"
            )
        config = dict(status["config"])
        # A tuned server may have stopped keeping what admission does not ask for.
        if not (status.get("tuning") or {}).get("first_victims", True):
            config["chunk_boundary"] = "never"
            if config["prompt_end"] == "auto":
                config["prompt_end"] = "never"
        return cls(
            mode=mode,
            page_size=page,
            checkpoint_grid=status["checkpoint_grid"],
            decode_grid=status["decode_grid"],
            chunk_tokens=chunk if chunk and chunk > 0 else None,
            min_gain_tokens=config["min_gain_tokens"],
            prompt_end=config["prompt_end"],
            chunk_boundary=config["chunk_boundary"],
            max_prompt_tokens=prompt_limit(info),
        )


def prompt_limit(info: Mapping[str, Any]) -> int:
    """Tokens of the longest prompt that the server of this `/server_info` accepts."""
    limits = (info.get("max_req_input_len"), info.get("max_total_num_tokens"))
    return min((limit for limit in limits if limit), default=4096)


def cache_status(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Configuration and counters of our cache, or None for another cache.

    Raises:
        UnsupportedServer: the cache could not report its state.
    """
    states = info.get("internal_states") or [{}]
    status: Mapping[str, Any] | None = states[0].get(STATE_KEY)
    if status is not None and "error" in status:
        raise UnsupportedServer(f"the cache cannot report its state: {status['error']}")
    return status


class ExpectedCache:
    """Admission without eviction, for requests that come one after another.

    Args:
        traits: of the server.
        keeps_unasked: whether prompt ends and chunk boundaries are kept. A server
            whose pool is full may decline them, or give them up at once.
    """

    def __init__(self, traits: ServerTraits, *, keeps_unasked: bool = True) -> None:
        self.traits = traits
        self._keeps_chunk_ends = keeps_unasked and traits.chunk_boundary != "never"
        self._keeps_prompt_ends = traits.prompt_end == "always" or (
            keeps_unasked and traits.prompt_end == "auto"
        )
        self._kv: set[tuple[int, ...]] = set()
        self._states: set[tuple[int, ...]] = set()

    def serve(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Tokens of ``prompt`` that are hit; the cache then holds ``prompt + output``.

        Args:
            prompt: token ids.
            output: token ids that the server has sampled; at least two, because a request
                that ends with its prefill hands its state over without a copy at the
                prompt's end.
        """
        prompt, sequence = tuple(prompt), (*prompt, *output)
        # The last token must be computed, so that there is something to sample from.
        reusable = self._on_page(len(prompt) - 1)
        kv_hit = min(reusable, self._on_page(self._common_prefix(prompt)))
        hit = max((len(s) for s in self._states if self._is_hit(s, prompt, kv_hit)), default=0)
        tail = self._prefill(prompt, hit, self._branch(prompt, hit, kv_hit))
        decode_end = self._decode_end(len(prompt), len(sequence) - 1)
        if decode_end or tail:
            # After a short answer the prompt's last state is the sequence's.
            self._states.add(sequence[: decode_end or tail])
        self._kv.add(sequence[: max(decode_end, len(prompt))])
        return hit

    def _on_page(self, tokens: int) -> int:
        return tokens - tokens % self.traits.page_size

    def _common_prefix(self, prompt: tuple[int, ...]) -> int:
        best = 0
        for known in self._kv:
            pairs = enumerate(zip(known, prompt, strict=False))
            end = min(len(known), len(prompt))
            best = max(best, next((i for i, (a, b) in pairs if a != b), end))
        return best

    @staticmethod
    def _is_hit(state: tuple[int, ...], prompt: tuple[int, ...], kv_hit: int) -> bool:
        return len(state) <= kv_hit and prompt[: len(state)] == state

    def _reachable(self, start: int, depth: int) -> int:
        return depth - (depth - start) % self.traits.checkpoint_grid

    def _branch(self, prompt: tuple[int, ...], hit: int, kv_hit: int) -> int | None:
        """Where the sequences part, if a state there is worth its slot."""
        if self._reachable(hit, kv_hit) - hit < self.traits.min_gain_tokens:
            return None
        goes_on = any(
            self._on_page(len(known)) > kv_hit and known[:kv_hit] == prompt[:kv_hit]
            for known in self._kv
        )
        # A forward that keeps one state keeps, where nothing parts, the prompt's end.
        return kv_hit if goes_on or self.traits.mode != "chunk" else None

    def _prefill(self, prompt: tuple[int, ...], start: int, branch: int | None) -> int:
        """Keep the states of a prefill; the depth of the one left at its end, or 0."""
        length, tail, mode = len(prompt), 0, self.traits.mode
        while start < length:
            end = self._chunk_end(start, length)
            cut = self._reachable(start, branch) if branch is not None else start
            is_inside = start < cut < end
            if is_inside and mode == "split":
                end = cut
            kept = self._reachable(start, end)
            if is_inside and mode == "exact":
                self._states.add(prompt[:cut])
            elif is_inside and mode == "chunk":
                kept = cut
            # What is left may be too short for the forward to keep another state.
            is_last = length - end < self.traits.checkpoint_grid
            if kept > start and self._keeps(kept == cut, is_last=is_last):
                self._states.add(prompt[:kept])
            if is_last and kept > start:
                tail = kept if kept != cut else 0
            start = end
        return tail

    def _chunk_end(self, start: int, length: int) -> int:
        chunk, grid = self.traits.chunk_tokens, self.traits.checkpoint_grid
        if chunk is None or start + chunk >= length:
            return length
        return start + (chunk - chunk % grid if chunk >= grid else chunk)

    def _keeps(self, is_branch: bool, *, is_last: bool) -> bool:
        return is_branch or (self._keeps_prompt_ends if is_last else self._keeps_chunk_ends)

    def _decode_end(self, prompt_tokens: int, computed: int) -> int:
        """Depth of the last state that decoding leaves behind; 0 if there is none."""
        depth = computed - computed % self.traits.decode_grid
        return depth if depth > prompt_tokens else 0

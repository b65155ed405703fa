"""What a server should report as `cached_tokens`, by brute force.

`ExpectedCache` plays one request after another against a cache with unlimited
pools, in the plainest way: sets of token prefixes, no tree. It is an independent
statement of the admission rules, for `hybrid-marconi verify` to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

STATE_KEY = "hybrid_marconi"
"""Key of our cache in every entry of `internal_states` of `/server_info`."""

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")


class UnsupportedServer(ValueError):
    """A server that no expectation can be stated for; its message is one line."""


@dataclass(frozen=True)
class ServerTraits:
    """What decides which states a server keeps.

    Attributes:
        strategy: value of `--mamba-radix-cache-strategy`.
        page_size: tokens per page of KV.
        checkpoint_grid: tokens between states that a prefill can keep, counted from
            the first token it computes; 1 under `no_buffer`.
        track_grid: tokens between states that decoding keeps, counted from the start
            of the sequence; 1 under `no_buffer`.
        chunk_tokens: tokens of one prefill chunk; None if prefill is not chunked.
        min_gain_tokens, prompt_end, chunk_boundary: as in `--cache-config`, or as the
            tuner of the server has put in force.
        max_prompt_tokens: the longest prompt that the server accepts.
    """

    strategy: str
    page_size: int = 1
    checkpoint_grid: int = 1
    track_grid: int = 1
    chunk_tokens: int | None = None
    min_gain_tokens: int = 128
    prompt_end: Literal["auto", "always", "never"] = "auto"
    chunk_boundary: Literal["first_victims", "never"] = "first_victims"
    max_prompt_tokens: int = 1 << 20

    @property
    def is_buffered(self) -> bool:
        """Whether the forward keeps states by itself, on a grid."""
        return self.strategy != "no_buffer"

    @classmethod
    def from_server_info(cls, info: Mapping[str, Any], grid: int | None = None) -> ServerTraits:
        """Traits of a server with our cache.

        Args:
            info: reply of `/server_info`.
            grid: checkpoint grid in tokens, where the server does not tell it. The
                interval of decode checkpoints equals it unless
                `--mamba-track-interval` was set by hand.

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
        strategy = info["mamba_radix_cache_strategy"]
        if strategy not in STRATEGIES:
            raise UnsupportedServer(
                f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}"
            )
        page, chunk = info["page_size"], info["chunked_prefill_size"]
        interval = info.get("mamba_track_interval") or 256
        grid = grid or status.get("checkpoint_grid") or math.lcm(interval, page)
        buffered = strategy != "no_buffer"
        config = dict(status["config"])
        # A tuned server may have stopped keeping what admission does not ask for.
        if not (status.get("tuning") or {}).get("first_victims", True):
            config["chunk_boundary"] = "never"
            if config["prompt_end"] == "auto":
                config["prompt_end"] = "never"
        return cls(
            strategy=strategy,
            page_size=page,
            checkpoint_grid=grid if buffered else 1,
            track_grid=math.lcm(grid, interval) if buffered else 1,
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
            output: token ids that the server has sampled; at least two, because under
                `no_buffer` a request that ends with its prefill hands its state over
                without a copy at the prompt's end.
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
        # The forward keeps one state: where nothing parts, the prompt's end has it.
        return kv_hit if goes_on or not self.traits.is_buffered else None

    def _prefill(self, prompt: tuple[int, ...], start: int, branch: int | None) -> int:
        """Keep the states of a prefill; the depth of the one left at its end, or 0."""
        length, tail = len(prompt), 0
        while start < length:
            end = self._chunk_end(start, length)
            cut = self._reachable(start, branch) if branch is not None else start
            if self.traits.is_buffered:
                kept = self._reachable(start, end)
                if start < cut < end:
                    kept = cut
            else:
                kept = end = cut if start < cut < end else end
            # What is left may be too short for the forward to keep another state.
            is_last = length - end < self.traits.checkpoint_grid
            if kept > start and self._keeps(kept == cut, is_last=is_last):
                self._states.add(prompt[:kept])
            if self.traits.is_buffered and is_last and kept > start:
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
        depth = computed - computed % self.traits.track_grid
        return depth if depth > prompt_tokens else 0

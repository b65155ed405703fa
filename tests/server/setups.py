"""The servers that the tests share, and what each should hit."""

import json
from dataclasses import dataclass

GRID = 64
"""Where the forward keeps one state, it lies on a multiple of this."""


@dataclass(frozen=True)
class Setup:
    """One server configuration.

    Attributes:
        strategy: value of ``--mamba-radix-cache-strategy``.
        slots: state slots of the pool.
        chunk: chunked prefill size, in tokens.
        page: page size, in tokens.
        args: further flags.
        branch_checkpoint: of ``--cache-config``.
    """

    name: str
    strategy: str
    slots: int
    chunk: int
    page: int = 1
    args: tuple[str, ...] = ()
    branch_checkpoint: str = "exact"

    @property
    def grid(self) -> int:
        """Tokens between two states that can be kept."""
        return GRID if self.branch_checkpoint == "chunk" else self.page

    def flags(self) -> list[str]:
        # A fixed policy: what is hit must not depend on what was served before.
        config = {"policy": "utility", "min_gain_tokens": 1, "strict": True}
        config["branch_checkpoint"] = self.branch_checkpoint
        flags = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(config)]
        flags += ["--mamba-radix-cache-strategy", self.strategy]
        flags += ["--max-mamba-cache-size", str(self.slots), "--max-total-tokens", "4096"]
        flags += ["--chunked-prefill-size", str(self.chunk), "--page-size", str(self.page)]
        return [*flags, *self.args]

    def reachable(self, tokens: int) -> int:
        """The deepest checkpoint up to ``tokens``: a page of the tree has one state, at its end."""
        return tokens - tokens % self.grid

    def second_hit(self, shared: int) -> int:
        """What the second of several prompts that share a prefix hits: a chunk boundary."""
        return shared - shared % self.chunk


SETUPS = [
    Setup("extra_buffer", "extra_buffer", 20, 2048, args=("--enable-metrics",)),
    Setup("extra_buffer_chunk", "extra_buffer", 20, 2048, branch_checkpoint="chunk"),
    Setup(
        "no_buffer_split_8",
        "no_buffer",
        8,
        128,
        args=("--disable-overlap-schedule",),
        branch_checkpoint="split",
    ),
    Setup(
        "extra_buffer_page_64_no_overlap_8",
        "extra_buffer",
        8,
        128,
        page=64,
        args=("--disable-overlap-schedule",),
    ),
    Setup(
        "lazy_page_64",
        "extra_buffer_lazy",
        20,
        128,
        page=64,
        args=("--enable-mixed-chunk",),
    ),
]
"""The strategy no_buffer with states inside the prefill is among the servers of tests/matrix."""

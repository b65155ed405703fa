"""The servers that the tests share, and what each should hit."""

import json
from dataclasses import dataclass, field

GRID = 64


@dataclass(frozen=True)
class Setup:
    """One server configuration.

    Attributes:
        strategy: value of ``--mamba-radix-cache-strategy``.
        slots: state slots of the pool.
        chunk: chunked prefill size, in tokens.
        page: page size, in tokens.
        args: further flags.
    """

    name: str
    strategy: str
    slots: int
    chunk: int
    page: int = 1
    args: tuple[str, ...] = ()
    config: dict = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return self.strategy == "no_buffer"

    def flags(self) -> list[str]:
        # A fixed policy: what is hit must not depend on what was served before.
        config = {"policy": "utility", "min_gain_tokens": 1, "strict": True, **self.config}
        flags = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(config)]
        flags += ["--mamba-radix-cache-strategy", self.strategy]
        flags += ["--max-mamba-cache-size", str(self.slots), "--max-total-tokens", "4096"]
        flags += ["--chunked-prefill-size", str(self.chunk), "--page-size", str(self.page)]
        return [*flags, *self.args]

    def reachable(self, tokens: int) -> int:
        """The deepest checkpoint that a branch at ``tokens`` gets."""
        return tokens if self.exact else tokens - tokens % GRID

    def second_hit(self, shared: int) -> int:
        """What the second of several prompts that share a prefix hits: a chunk boundary."""
        return shared - shared % self.chunk


SETUPS = [
    Setup("no_buffer", "no_buffer", 12, 2048, args=("--disable-overlap-schedule",)),
    Setup("extra_buffer", "extra_buffer", 20, 2048),
    Setup("no_buffer_chunked_8", "no_buffer", 8, 128, args=("--disable-overlap-schedule",)),
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

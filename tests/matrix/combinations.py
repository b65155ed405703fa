"""Every legal combination of the flags that decide how a prefill is cut and states are kept."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
CHUNKS = (64, 100, 128, 2048)
PAGES = (1, 16, 64)

CONFIG = {"policy": "utility", "min_gain_tokens": 1, "prompt_end": "always", "strict": True}


@dataclass(frozen=True)
class Combination:
    """Flags of one server.

    Attributes:
        strategy: value of ``--mamba-radix-cache-strategy``.
        overlap: whether the overlap schedule is on.
        chunk: chunked prefill size, in tokens.
        page: page size, in tokens.
    """

    strategy: str
    overlap: bool
    chunk: int
    page: int

    @property
    def is_legal(self) -> bool:
        """Whether SGLang serves it."""
        if self.strategy == "no_buffer" and (self.overlap or self.page != 1):
            return False
        if self.strategy == "extra_buffer_lazy" and not self.overlap:
            return False
        return self.chunk % self.page == 0

    @property
    def name(self) -> str:
        overlap = "overlap" if self.overlap else "no_overlap"
        return f"{self.strategy}-{overlap}-chunk_{self.chunk}-page_{self.page}"

    def flags(self) -> list[str]:
        flags = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(CONFIG)]
        flags += ["--mamba-radix-cache-strategy", self.strategy]
        flags += ["--chunked-prefill-size", str(self.chunk), "--page-size", str(self.page)]
        # Room for all that one test leaves: nothing of it may be evicted.
        flags += ["--max-mamba-cache-size", "64", "--max-total-tokens", "8192"]
        return flags if self.overlap else [*flags, "--disable-overlap-schedule"]

    def on_page(self, tokens: int) -> int:
        """The deepest token up to ``tokens`` that the tree can name."""
        return tokens - tokens % self.page


ALL = [
    combination
    for values in itertools.product(STRATEGIES, (True, False), CHUNKS, PAGES)
    if (combination := Combination(*values)).is_legal
]

SUBSET = [
    Combination("no_buffer", False, 100, 1),
    Combination("extra_buffer", False, 64, 16),
    Combination("extra_buffer_lazy", True, 100, 1),
    Combination("extra_buffer_lazy", True, 2048, 16),
]
"""What `make test` runs: with the servers of tests/server most pairs of values.

All pairs would take at least twelve servers, one for each strategy and chunk size.
"""


def pairs_of(combinations: Iterable[Combination]) -> set[frozenset]:
    """Values of any two flags that some combination has together."""
    names = [each.name for each in fields(Combination)]
    return {
        frozenset(pair)
        for combination in combinations
        for pair in itertools.combinations(zip(names, astuple(combination), strict=True), 2)
    }

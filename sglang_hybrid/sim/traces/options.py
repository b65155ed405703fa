"""What readers are told."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_hybrid.sim.traces.tokenizers import Tokenizer

OUTPUTS = ("continued", "unique")


@dataclass(frozen=True)
class ReadOptions:
    """Options of the readers.

    Attributes:
        tokenizer: for traces of text.
        rendering: name of a rendering, for traces of text.
        outputs: where a trace of block hashes does not tell outputs: ``continued`` takes
            them from the request that continues one, ``unique`` shares none.
        max_input_tokens: longest prompt; None is the default of the format, 0 no limit.
    """

    tokenizer: Tokenizer
    rendering: str = "chatml"
    outputs: str = "continued"
    max_input_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise ValueError(f"outputs {self.outputs!r} is not allowed; allowed: continued, unique")
        if self.max_input_tokens is not None and self.max_input_tokens < 0:
            raise ValueError(
                f"max_input_tokens {self.max_input_tokens} is not allowed; allowed: a length in "
                "tokens, or 0 for no limit"
            )

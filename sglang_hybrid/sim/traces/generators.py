"""Made-up traces, the same for the same seed.

`article_a` and `article_b` follow the two workloads on which Marconi's weight of FLOP
efficiency pulls in opposite directions; `shared_prefix` follows the dataset
generated-shared-prefix of SGLang's bench_serving.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from urllib.parse import parse_qsl

import numpy as np

from sglang_hybrid.sim.trace import IntArray, Trace, TraceBuilder

PREFIX = "gen:"

SHORT_PREFIXES, SHORT_USES, SHORT_TOKENS, ZIPF_EXPONENT = 40, 600, (256, 1024), 0.8
LONG_TOKENS = (4096, 12288)
SUFFIX_TOKENS, OUTPUT_TOKENS = (30, 120), (50, 150)


MAX_GENERATED_TOKENS = 2**28
"""More would not fit into the memory of a laptop."""


def article_a(seed: int = 0) -> Trace:
    """Hot short prefixes, and 15 long ones that are used 20 times each."""
    return _article("article-a", lambda rng: np.full(15, 20), seed)


def article_b(seed: int = 0) -> Trace:
    """The same short prefixes, and 200 long ones that are used once or twice."""
    return _article("article-b", lambda rng: rng.integers(1, 3, 200), seed)


def shared_prefix(
    groups: int = 64,
    prompts: int = 16,
    system: int = 2048,
    question: int = 128,
    output: int = 256,
    seed: int = 0,
) -> Trace:
    """Groups of prompts behind a common system prompt, in random order.

    Args:
        groups: number of system prompts.
        prompts: requests per group.
        system: tokens of a system prompt.
        question: tokens of what follows it, unique to a request.
        output: generated tokens.

    Raises:
        ValueError: a number that is too small, or too many tokens in all.
    """
    least = {"groups": 1, "prompts": 1, "system": 1, "question": 0, "output": 0}
    given = {"groups": groups, "prompts": prompts, "system": system}
    given |= {"question": question, "output": output}
    for name, value in given.items():
        if value < least[name]:
            raise ValueError(f"{name} {value} is not allowed; allowed: from {least[name]}")
    total = groups * prompts * (system + question + output)
    if total > MAX_GENERATED_TOKENS:
        raise ValueError(
            f"{groups} groups of {prompts} prompts make {total} tokens, too many; allowed: "
            f"up to {MAX_GENERATED_TOKENS}; use fewer or shorter prompts"
        )
    rng = np.random.default_rng(seed)
    maker = _Maker("shared-prefix")
    lengths = np.full(groups, system)
    for group in rng.permutation(np.repeat(np.arange(groups), prompts)).tolist():
        maker.add(group, lengths, question, output, system_len=system)
    return maker.build(
        f"{groups} system prompts of {system} tokens with {prompts} requests each, in random "
        f"order (seed {seed})."
    )


GENERATORS: dict[str, Callable[..., Trace]] = {
    "article-a": article_a,
    "article-b": article_b,
    "shared-prefix": shared_prefix,
}


def generate(spec: str) -> Trace:
    """The trace of `gen:NAME[?KEY=NUMBER&...]`.

    Raises:
        ValueError: an unknown generator or parameter, or a value that is no integer.
    """
    name, _, query = spec.removeprefix(PREFIX).partition("?")
    if name not in GENERATORS:
        raise ValueError(f"generator {name!r} is not known; allowed: {', '.join(GENERATORS)}")
    allowed = list(inspect.signature(GENERATORS[name]).parameters)
    arguments: dict[str, int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in allowed or key in arguments:
            problem = "is given twice" if key in arguments else "is not known"
            raise ValueError(f"{spec}: {key!r} {problem}; allowed: {', '.join(allowed)}")
        if not value.isdecimal():
            raise ValueError(f"{spec}: {key} {value!r} is not allowed; allowed: an integer from 0")
        arguments[key] = int(value)
    if query and not arguments:
        raise ValueError(f"{spec}: {query!r} is not KEY=NUMBER; allowed: {', '.join(allowed)}")
    return GENERATORS[name](**arguments)


def _article(name: str, long_uses: Callable[[np.random.Generator], IntArray], seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    short = rng.integers(SHORT_TOKENS[0], SHORT_TOKENS[1] + 1, SHORT_PREFIXES)
    weights = 1 / np.arange(1, SHORT_PREFIXES + 1) ** ZIPF_EXPONENT
    drawn = rng.choice(SHORT_PREFIXES, SHORT_USES, p=weights / weights.sum())
    uses = long_uses(rng)
    long = rng.integers(LONG_TOKENS[0], LONG_TOKENS[1] + 1, len(uses))
    used = SHORT_PREFIXES + np.repeat(np.arange(len(uses)), uses)
    lengths = np.concatenate((short, long))
    order = rng.permutation(np.concatenate((drawn, used)))
    suffixes = rng.integers(SUFFIX_TOKENS[0], SUFFIX_TOKENS[1] + 1, len(order))
    outputs = rng.integers(OUTPUT_TOKENS[0], OUTPUT_TOKENS[1] + 1, len(order))
    maker = _Maker(name)
    for prefix, suffix, output in zip(
        order.tolist(), suffixes.tolist(), outputs.tolist(), strict=True
    ):
        maker.add(prefix, lengths, suffix, output)
    return maker.build(
        f"{SHORT_PREFIXES} short prefixes drawn {SHORT_USES} times and {len(uses)} long ones used "
        f"{len(used)} times, in random order (seed {seed})."
    )


class _Maker:
    """Requests that begin with one of some prefixes; all other tokens are unique."""

    def __init__(self, name: str) -> None:
        self._builder = TraceBuilder(name)
        self._first: dict[int, int] = {}
        self._free = 0

    def add(
        self,
        prefix: int,
        lengths: IntArray,
        suffix: int,
        output: int,
        system_len: int | None = None,
    ) -> None:
        length = int(lengths[prefix])
        parent = self._first.get(prefix, -1)
        own = suffix + output + (0 if prefix in self._first else length)
        index = self._builder.add_difference(
            np.arange(self._free, self._free + own),
            length + suffix,
            output,
            parent=parent,
            keep=length if parent >= 0 else 0,
            system_len=system_len,
        )
        self._free += own
        self._first.setdefault(prefix, index)

    def build(self, assumption: str) -> Trace:
        self._builder.assumptions += [
            assumption,
            "Every token outside the shared prefixes occurs once.",
        ]
        return self._builder.build()

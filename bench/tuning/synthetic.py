"""Workloads on which the weight of FLOP efficiency pulls in opposite directions.

They have the shape of the two traces of docs/paper.md ("article"), at a scale that a
server without a GPU serves in minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.tuning.streams import Request, Stream, random_tokens


@dataclass(frozen=True)
class Tenants:
    """Workload A: long prefixes that come back, among short requests that do not.

    Attributes:
        tenants: number of long prefixes, drawn with Zipf weights of ``exponent``.
        prefix: their least and greatest length, in tokens.
        share: of requests that begin with one.
        suffix: own tokens of such a request.
        short: tokens of a request without a prefix.
        output_len: generated tokens of every request.
    """

    tenants: int = 8
    exponent: float = 0.6
    prefix: tuple[int, int] = (600, 2000)
    share: float = 0.3
    suffix: tuple[int, int] = (20, 60)
    short: tuple[int, int] = (40, 160)
    output_len: int = 8

    def requests(self, count: int, rng: np.random.Generator, part: str = "A") -> list[Request]:
        prefixes = [random_tokens(rng, _between(rng, self.prefix)) for _ in range(self.tenants)]
        weights = np.arange(1, self.tenants + 1) ** -self.exponent
        weights /= weights.sum()
        made = []
        for _ in range(count):
            if rng.random() < self.share:
                prefix = prefixes[rng.choice(self.tenants, p=weights)]
                own = prefix + random_tokens(rng, _between(rng, self.suffix))
            else:
                own = random_tokens(rng, _between(rng, self.short))
            made.append(Request(own, self.output_len, part=part))
        return made


@dataclass(frozen=True)
class Topics:
    """Workload B: short prefixes in bursts, among long prompts that never come back.

    Attributes:
        topics: short prefixes in use at a time; one that was used ``uses`` times is
            replaced by a new one.
        prefix: their least and greatest length, in tokens.
        uses: least and greatest number of requests behind one.
        share: of long requests.
        long: tokens of a long request.
        suffix: own tokens of a request with a prefix.
        output_len: generated tokens of every request.
    """

    topics: int = 5
    prefix: tuple[int, int] = (400, 800)
    uses: tuple[int, int] = (4, 6)
    share: float = 0.2
    long: tuple[int, int] = (1500, 2400)
    suffix: tuple[int, int] = (20, 60)
    output_len: int = 8

    def requests(self, count: int, rng: np.random.Generator, part: str = "B") -> list[Request]:
        def topic():
            return [random_tokens(rng, _between(rng, self.prefix)), _between(rng, self.uses)]

        live = [topic() for _ in range(self.topics)]
        made = []
        for _ in range(count):
            if rng.random() < self.share:
                own = random_tokens(rng, _between(rng, self.long))
            else:
                at = int(rng.integers(self.topics))
                own = live[at][0] + random_tokens(rng, _between(rng, self.suffix))
                live[at][1] -= 1
                if not live[at][1]:
                    live[at] = topic()
            made.append(Request(own, self.output_len, part=part))
        return made


def tenants(count: int, seed: int) -> Stream:
    return Stream("tenants", tuple(Tenants().requests(count, np.random.default_rng(seed))))


def topics(count: int, seed: int) -> Stream:
    return Stream("topics", tuple(Topics().requests(count, np.random.default_rng(seed))))


def drift(count: int, seed: int) -> Stream:
    """A third of A, of B, and of A with the same prefixes as before."""
    third = count // 3
    a = Tenants().requests(count - third, np.random.default_rng(seed))
    b = Topics().requests(third, np.random.default_rng(seed + 1))
    return Stream("drift", (*a[:third], *b, *a[third:]))


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))

"""Shared prefixes on every combination of flags: hits, passes, answers."""

import itertools

import combinations
import pytest
import setups
from comparison import Comparison
from workload import counters, sharing

SHARED = [63, 64, 65, 250, 1000, 1024]
OUTPUT = 4


def passes(length: int, hit: int, chunk: int) -> int:
    """Forwards that a prompt takes when nothing but the chunk size cuts it."""
    return -(-(length - hit) // chunk)


def boundaries(length: int, hit: int, chunk: int, page: int) -> int:
    """Chunks after which a state stays that is neither a branch nor the last of the prompt.

    A rest of less than a page gets no state, so that the boundary before it is the last.
    """
    return len(range(hit + chunk, length - page + 1, chunk))


def taken(before: dict, after: dict) -> dict[str, int]:
    """Checkpoints taken between two readings, by kind."""
    kinds = ("branch", "prompt_end", "decode_end", "chunk")
    return {kind: after[f"{kind}_checkpoints"] - before[f"{kind}_checkpoints"] for kind in kinds}


@pytest.mark.parametrize("shared", SHARED)
def test_four_prompts_share_a_prefix(combined, shared):
    server, flags = combined
    server.flush()
    prompts = [sharing(shared, i) for i in range(4)]
    length, chunk, page = len(prompts[0]), flags.chunk, flags.page
    # The second prompt goes on from a chunk boundary of the first, if there is one.
    known, branch = shared - shared % chunk, flags.on_page(shared)
    hits = [0, known, branch, branch]

    comparison, readings = Comparison(server), [counters(server)]
    for prompt in prompts:
        comparison.ask(prompt, OUTPUT)
        readings.append(counters(server))
    steps = list(itertools.pairwise(readings))

    assert [answer.hit for answer in comparison.answers] == hits
    assert [after["prefill_passes"] - before["prefill_passes"] for before, after in steps] == [
        passes(length, hit, chunk) for hit in hits
    ]
    assert taken(*steps[1]) == {
        "branch": int(branch > known),
        # With pages the answer is too short for a state of its own: the prompt's end is
        # that of the sequence.
        "prompt_end": int(page == 1),
        "decode_end": 1,
        "chunk": boundaries(length, known, chunk, page),
    }
    for name in ("branch_cuts", "branch_waits", "unwritten_checkpoints", "skipped_checkpoints"):
        assert readings[-1][name] == readings[0][name], name
    comparison.check()


@pytest.mark.parametrize("output", [1, 40])
def test_a_conversation_goes_on_at_its_last_token(combined, output):
    server, flags = combined
    server.flush()
    comparison, talk = Comparison(server), sharing(150, 1)
    for turn in range(3):
        before, known = counters(server), flags.on_page(len(talk) + output - 1)
        answer = comparison.ask(talk, output)
        after = counters(server)
        assert after["prefill_passes"] - before["prefill_passes"] == passes(
            len(talk), answer.hit, flags.chunk
        )
        talk = [*talk, *answer.tokens, *sharing(7, turn)]
        assert comparison.ask(talk, output).hit == known
    comparison.check()


def test_the_subset_has_most_pairs_of_values():
    served = [
        combinations.Combination(
            setup.strategy,
            "--disable-overlap-schedule" not in setup.args,
            setup.chunk,
            setup.page,
        )
        for setup in setups.SETUPS
        if setup.branch_checkpoint == "exact"
    ]
    every = combinations.pairs_of(combinations.ALL)
    left = every - combinations.pairs_of([*combinations.SUBSET, *served])
    assert (len(every), len(left)) == (47, 12)
    # Strategy, overlap and page have all pairs; each has some of the chunk sizes.
    assert all("chunk" in dict(pair) for pair in left)
    assert set(combinations.SUBSET) < set(combinations.ALL)

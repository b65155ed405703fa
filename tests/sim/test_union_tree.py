"""The union tree against a token trie."""

import random

import pytest

from sglang_hybrid.sim.trace import Trace, TraceBuilder
from sglang_hybrid.sim.union_tree import NEVER, compile_trace


def random_trace(rng: random.Random) -> Trace:
    """Short sequences over few symbols, many of which continue an earlier one."""
    width = rng.choice([1, 3, 4])
    builder = TraceBuilder("random", width)
    lengths: list[tuple[int, int]] = []  # symbols, tokens
    for index in range(rng.randint(1, 12)):
        parent = rng.randrange(-1, index) if index else -1
        keep = rng.randint(0, lengths[parent][0]) if parent >= 0 else 0
        own = [rng.randrange(2) for _ in range(rng.randint(0 if keep else 1, 6))]
        count = keep + len(own)
        tokens = (count - 1) * width + rng.randint(1, width)
        input_len = rng.randint(1, tokens)
        builder.add_difference(own, input_len, tokens - input_len, parent=parent, keep=keep)
        lengths.append((count, tokens))
    return builder.build()


def tokens_of(trace: Trace, request: int) -> list[tuple[int, int]]:
    width = trace.tokens_per_symbol
    total = int(trace.input_len[request] + trace.output_len[request])
    symbols = trace.sequence(request)
    return [(int(symbols[i // width]), i % width) for i in range(total)]


def expected_cuts(trace: Trace) -> dict[tuple, int]:
    """Prefixes that must be nodes, with the request from which each is a fork."""
    sequences = [tokens_of(trace, r) for r in range(len(trace))]
    continuations: dict[tuple, set] = {}
    forks: dict[tuple, int] = {}
    for r, sequence in enumerate(sequences):
        for depth, token in enumerate(sequence):
            seen = continuations.setdefault(tuple(sequence[:depth]), set())
            if seen and token not in seen:
                forks.setdefault(tuple(sequence[:depth]), r)
            seen.add(token)
    cuts = {prefix: r for prefix, r in forks.items() if prefix}
    for r, sequence in enumerate(sequences):
        cuts.setdefault(tuple(sequence), NEVER)
        cuts.setdefault(tuple(sequence[: trace.input_len[r]]), NEVER)
    return cuts


@pytest.mark.parametrize("block", range(20))
def test_nodes_are_the_cuts_of_a_token_trie(block):
    for seed in range(block * 50, block * 50 + 50):
        trace = random_trace(random.Random(seed))
        tree = compile_trace(trace)
        found = {}
        for r in range(len(trace)):
            sequence = tokens_of(trace, r)
            path = tree.path(r)
            assert tree.depth[path[0]] == len(sequence)
            assert int(tree.prompt_node[r]) in path
            assert tree.depth[tree.prompt_node[r]] == trace.input_len[r]
            for node in path:
                prefix = tuple(sequence[: tree.depth[node]])
                assert found.setdefault(prefix, node) == node, "one node per prefix"
                assert tree.first_seen[node] <= r
        assert len(found) == tree.num_nodes - 1
        cuts = expected_cuts(trace)
        assert {p: int(tree.fork_time[n]) for p, n in found.items()} == cuts


@pytest.mark.parametrize("page", [1, 2, 5])
def test_turns_count_earlier_ends_in_full_pages(page):
    for seed in range(200):
        trace = random_trace(random.Random(seed))
        tree = compile_trace(trace, page)
        sequences = [tokens_of(trace, r) for r in range(len(trace))]
        for r, sequence in enumerate(sequences):
            prompt = sequence[: trace.input_len[r]]
            ends = {tuple(s[: len(s) - len(s) % page]) for s in sequences[:r]} - {()}
            turns = sum(tuple(prompt[:d]) in ends for d in range(1, len(prompt) + 1))
            assert tree.turn[r] == min(2, turns)


def test_sequence_follows_the_chain_of_parents():
    builder = TraceBuilder("chain")
    first = builder.add_difference([1, 2, 3, 4], 2, 2)
    second = builder.add_difference([5], 3, 1, parent=first, keep=3)
    third = builder.add_difference([6, 7], 3, 1, parent=second, keep=2)
    trace = builder.build()
    assert [list(trace.sequence(r)) for r in (first, second, third)] == [
        [1, 2, 3, 4],
        [1, 2, 3, 5],
        [1, 2, 6, 7],
    ]


def test_sessions_are_stored_as_differences():
    builder = TraceBuilder("session")
    builder.add([1, 2, 3], 2, 1, session="a")
    builder.add([1, 2, 3, 4, 5], 4, 1, session="a")
    trace = builder.build()
    assert list(trace.symbols) == [1, 2, 3, 4, 5]
    assert list(trace.sequence(1)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 0, 1), "input_len 0"),
        (([1], 1, 1), "1 symbols of 1 tokens do not fit"),
        (([1], 1, 0, 3), "parent 3"),
    ],
)
def test_requests_that_do_not_fit_are_refused(arguments, message):
    symbols, input_len, output_len, *parent = arguments
    with pytest.raises(ValueError, match=message):
        TraceBuilder("bad").add_difference(
            symbols, input_len, output_len, parent=parent[0] if parent else -1
        )

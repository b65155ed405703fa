"""Chained page hashes: equal for equal prefixes, different for anything else."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.core.pages import PAGE_TOKENS, PageChain, namespace_of


def hashes(tokens, namespace=0):
    return PageChain(namespace).extend(array("q", tokens), len(tokens)).tolist()


TOKENS = list(range(1000, 1000 + 5 * PAGE_TOKENS))


def test_only_full_pages_count():
    for length in (0, 1, 63, 64, 65, 127, 128):
        assert len(hashes(TOKENS[:length])) == length // PAGE_TOKENS


@given(st.lists(st.integers(0, len(TOKENS)), max_size=6))
def test_growing_by_pieces_is_the_same_as_at_once(lengths):
    chain, tokens = PageChain(3), array("q", TOKENS)
    for length in sorted(lengths):
        chain.extend(tokens, length)
    assert chain.extend(tokens, len(TOKENS)).tolist() == hashes(TOKENS, 3)


@given(st.integers(0, len(TOKENS) - 1), st.integers(0, 2**40))
def test_one_other_token_changes_its_page_and_all_later_ones(place, token):
    other = list(TOKENS)
    other[place] = token
    same = place // PAGE_TOKENS if token != TOKENS[place] else 5
    a, b = hashes(TOKENS), hashes(other)
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b)


def test_order_and_place_of_pages_matter():
    first, second = TOKENS[:64], TOKENS[64:128]
    every = [*hashes(first + second), *hashes(second + first), *hashes(first + first)]
    assert len(set(every)) == 5  # only the first page of two of them is shared


def test_namespaces_share_nothing():
    keys = [None, "", "tenant-a", "b", "a=b", "\ud800", "\0", "x" * 10**6]
    spaces = [namespace_of(extra_key, salt) for extra_key in keys for salt in keys]
    assert len(set(spaces)) == len(keys) ** 2
    every = [value for space in spaces for value in hashes(TOKENS, space)]
    assert len(set(every)) == len(every)


def test_no_collision_among_many_similar_pages():
    rng = np.random.default_rng(0)
    pages = rng.integers(0, 4, (50_000, PAGE_TOKENS), dtype=np.int64)
    pages = np.unique(pages, axis=0)
    firsts = [int(PageChain().extend(page, PAGE_TOKENS)[0]) for page in pages[:20_000]]
    assert len(set(firsts)) == len(firsts)


def test_hashes_do_not_depend_on_the_process():
    # A constant, so that a record or another rank with another interpreter agrees.
    assert hashes(range(64)) == [4596803124713742435]
    assert namespace_of("tenant-a") == 2470779626503660427

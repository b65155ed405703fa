"""A page's hash stands for the page and everything before it."""

import numpy as np
import pytest

from sglang_hybrid.shadow.hashes import namespace_hash, page_hashes

TOKENS = np.random.default_rng(0).integers(0, 150_000, 1000)


def test_hashes_agree_as_far_as_the_tokens_do():
    for at in (0, 63, 64, 500, 960 + 39):
        other = TOKENS.copy()
        other[at] += 1
        same = page_hashes(TOKENS) == page_hashes(other)
        pages = 1000 // 64
        assert same.tolist() == [page < at // 64 for page in range(pages)]


def test_a_page_depends_on_what_came_before_it():
    page = TOKENS[:64]
    twice = page_hashes(np.concatenate((page, page)))
    assert twice[0] == page_hashes(page)[0]
    assert twice[0] != twice[1]
    other = page_hashes(np.concatenate((TOKENS[64:128], page)))
    assert len({*twice.tolist(), *other.tolist()}) == 4


def test_swapped_tokens_and_swapped_pages_differ():
    swapped = TOKENS.copy()
    swapped[[3, 5]] = swapped[[5, 3]]
    assert page_hashes(swapped)[0] != page_hashes(TOKENS)[0]
    pages = np.concatenate((TOKENS[64:128], TOKENS[:64], TOKENS[128:]))
    assert (page_hashes(pages) != page_hashes(TOKENS)).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_the_type_of_the_tokens_does_not_matter(dtype):
    assert (page_hashes(TOKENS.astype(dtype)) == page_hashes(TOKENS)).all()


def test_no_two_of_many_similar_pages_collide():
    counts = np.arange(200_000)
    tokens = np.zeros((len(counts), 2), np.int64)
    tokens[:, 0], tokens[:, 1] = counts % 500, counts // 500
    hashes = {int(page_hashes(pair, page=2)[0]) for pair in tokens[:20_000]}
    assert len(hashes) == 20_000


def test_hashes_are_the_same_in_every_process():
    assert page_hashes(np.arange(64)).tolist() == [KNOWN]
    assert namespace_hash("salt") == namespace_hash(b"salt") == KNOWN_NAMESPACE
    assert namespace_hash(None) == namespace_hash("") == 0


def test_partial_pages_have_no_hash():
    assert [len(page_hashes(np.arange(n))) for n in (0, 1, 63, 64, 127, 128)] == [0, 0, 0, 1, 1, 2]


KNOWN = 9040325349610866815
KNOWN_NAMESPACE = 2681811036199861038

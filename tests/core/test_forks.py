"""The index of forks ever seen, against a set of literal sequences."""

import random
from array import array

import pytest

from sglang_hybrid.core.forks import ForkIndex
from sglang_hybrid.core.pages import PAGE_TOKENS, PageChain


def chain(pages, namespace=0):
    """Hashes of a sequence of one-letter pages."""
    tokens = array("q", [ord(page) for page in pages for _ in range(PAGE_TOKENS)])
    return PageChain(namespace).extend(tokens, len(tokens))


def deepest(index, pages, nearest=1, farthest=10**6, namespace=0):
    return index.deepest(chain(pages, namespace), nearest, farthest)


def test_a_fork_is_known_from_the_second_continuation():
    index = ForkIndex(1 << 10)
    index.observe(chain("abcd"))
    assert deepest(index, "abxx") is None
    index.observe(chain("abxx"))
    assert deepest(index, "abzz") == 2 * PAGE_TOKENS
    assert deepest(index, "ab") == 2 * PAGE_TOKENS
    assert deepest(index, "a") is None


def test_a_longer_or_equal_sequence_is_no_fork():
    index = ForkIndex(1 << 10)
    for pages in ("abc", "abcde", "abc", "abcde"):
        index.observe(chain(pages))
    assert deepest(index, "abcdefg") is None


def test_the_deepest_within_the_bounds():
    index = ForkIndex(1 << 10)
    for pages in ("abcdef", "axxxxx", "abcdyy"):
        index.observe(chain(pages))
    at = PAGE_TOKENS
    assert deepest(index, "abcdzz") == 4 * at
    assert deepest(index, "abcdzz", farthest=4 * at - 1) == at
    assert deepest(index, "abcdzz", nearest=at + 1, farthest=4 * at - 1) is None
    assert deepest(index, "abcdzz", nearest=4 * at) == 4 * at
    assert deepest(index, "abcdzz", nearest=4 * at + 1) is None


def test_namespaces_do_not_see_each_other():
    index = ForkIndex(1 << 10)
    index.observe(chain("abc", 1))
    index.observe(chain("abx", 2))
    assert deepest(index, "abz", namespace=1) is None
    index.observe(chain("aby", 1))
    assert deepest(index, "abz", namespace=1) == 2 * PAGE_TOKENS
    assert deepest(index, "abz", namespace=2) is None


def test_clear_forgets():
    index = ForkIndex(1 << 10)
    index.observe(chain("abc"))
    index.observe(chain("abx"))
    index.clear()
    assert deepest(index, "abz") is None


def test_memory_stays_and_recent_forks_survive_a_flood():
    index = ForkIndex(1 << 12)
    size = index.num_bytes
    rng = random.Random(1)
    for _ in range(500):
        index.observe(chain([chr(rng.randrange(32, 1000)) for _ in range(40)]))
    index.observe(chain("abc"))
    index.observe(chain("abx"))
    assert deepest(index, "abz") == 2 * PAGE_TOKENS
    assert index.num_bytes == size


def test_against_literal_prefixes():
    rng = random.Random(5)
    index, following = ForkIndex(1 << 16), {}
    for _ in range(300):
        pages = "".join(rng.choice("ab") for _ in range(rng.randrange(1, 9)))
        forks = [n for n in range(1, len(pages) + 1) if len(following.get(pages[:n], ())) > 1]
        expected = forks[-1] * PAGE_TOKENS if forks else None
        assert deepest(index, pages) == expected
        index.observe(chain(pages))
        for n in range(1, len(pages)):
            following.setdefault(pages[:n], set()).add(pages[n])


@pytest.mark.parametrize("slots", [0, 1, 3, 100])
def test_sizes_that_are_not_powers_of_two_are_refused(slots):
    with pytest.raises(ValueError, match=f"power of two of at least 2, got {slots}"):
        ForkIndex(slots)


def test_a_page_of_zeros_is_a_page_like_any_other():
    index = ForkIndex(1 << 10)
    assert 0 not in chain("\0\0\0")
    index.observe(chain("\0\0\0"))
    index.observe(chain("\0\0\0"))
    assert deepest(index, "\0\0\0") is None

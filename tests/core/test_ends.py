"""How far a conversation is, by where earlier sequences ended."""

import numpy as np
import pytest

from sglang_hybrid.core.ends import KnownEnds
from sglang_hybrid.core.pages import PAGE_TOKENS, PageChain

TALK = np.arange(20 * PAGE_TOKENS)


def pages(tokens, length, namespace=0):
    return PageChain(namespace).extend(tokens, length)


def test_ends_on_the_prompt_are_counted_up_to_two():
    ends = KnownEnds()
    turns = []
    for length in (100, 300, 500, 700):
        turns.append(ends.turn(pages(TALK, length - 30)))
        ends.observe(pages(TALK, length))
    assert turns == [0, 1, 2, 2]
    assert ends.turn(pages(TALK + 1, 700)) == 0
    assert ends.turn(pages(TALK, 700, namespace=1)) == 0


def test_a_repeated_end_counts_once_and_one_beyond_the_prompt_not_at_all():
    ends = KnownEnds()
    for length in (130, 190, 640):  # two of them within one page
        ends.observe(pages(TALK, length))
    assert len(ends) == 2
    assert ends.turn(pages(TALK, 639)) == 1
    assert ends.turn(pages(TALK, 640)) == 2


def test_sequences_without_a_full_page_are_not_remembered():
    ends = KnownEnds()
    ends.observe(pages(TALK, PAGE_TOKENS - 1))
    assert len(ends) == 0 and ends.turn(pages(TALK, 10)) == 0


def test_the_oldest_is_forgotten():
    ends = KnownEnds(capacity=2)
    for length in (64, 128, 192):
        ends.observe(pages(TALK, length))
    assert len(ends) == 2
    assert ends.turn(pages(TALK, 128)) == 1
    ends.clear()
    assert ends.turn(pages(TALK, 640)) == 0
    with pytest.raises(ValueError, match="capacity"):
        KnownEnds(0)

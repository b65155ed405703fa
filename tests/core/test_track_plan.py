"""The plan of states that a prefill forward saves, against plain enumeration."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.chunk_plan import ChunkPlan
from sglang_hybrid.core.places import places_in
from sglang_hybrid.core.track_plan import on_page

WANTED = st.lists(st.tuples(st.integers(1, 300), st.sampled_from(Kind)), max_size=6)


@st.composite
def rows(draw):
    """Lengths of rows, each with the offsets to save."""
    lengths = draw(st.lists(st.integers(1, 200), min_size=1, max_size=5))
    return [
        (length, sorted(draw(st.sets(st.integers(1, length), max_size=4)))) for length in lengths
    ]


@given(rows(), st.sampled_from([1, 16, 64]), st.integers(0, 4))
def test_every_state_is_reached_from_a_chunk_state(rows, chunk, window):
    plan = ChunkPlan(chunk_tokens=chunk, window_tokens=window)
    for length, offsets in rows:
        plan.add_row(length, offsets)
    # What kernels return: the state before each chunk of each row, one row after another.
    first = [sum(length for length, _ in rows[:row]) for row in range(len(rows))]
    chunk_states = [
        (row, start) for row, (length, _) in enumerate(rows) for start in range(0, length, chunk)
    ]
    expected = [(row, offset) for row, (_, offsets) in enumerate(rows) for offset in offsets]
    assert len(plan) == len(expected)
    for i, (row, offset) in enumerate(expected):
        assert (plan.rows[i], plan.ends[i]) == (row, first[row] + offset)
        chunk_row, chunk_start = chunk_states[plan.chunks[i]]
        assert chunk_row == row and plan.starts[i] == first[row] + chunk_start
        rest = plan.ends[i] - plan.starts[i]
        # A whole chunk is advanced over only where no chunk state follows it.
        assert 0 <= rest < chunk or (rest == chunk and offset == rows[row][0])
        if offset >= window:
            assert plan.window_index[i] == -1
        else:
            assert plan.window_rows[plan.window_index[i]] == row
    assert len(set(plan.window_rows)) == len(plan.window_rows)
    turns = plan.turns()
    assert sorted(index for turn in turns for index in turn) == list(range(len(plan)))
    for turn in turns:
        of_turn = [plan.rows[index] for index in turn]
        assert of_turn == sorted(set(of_turn))


@pytest.mark.parametrize("offset", [0, 6, -1])
def test_a_state_outside_of_its_row_is_refused(offset):
    with pytest.raises(ValueError, match=f"no state after {offset} tokens of a row of 5"):
        ChunkPlan(chunk_tokens=64, window_tokens=3).add_row(5, [offset])


@given(WANTED, st.integers(0, 300), st.integers(1, 300), st.sampled_from([1, 16, 64]))
def test_wanted_places_lie_on_pages_inside_the_row(wanted, start, length, page):
    start = on_page(start, page)
    end = start + length
    places, rounded = places_in(wanted, start, end, page)
    depths = [depth for depth, _ in places]
    inside = [depth for depth, _ in wanted if start < depth // page * page <= end]
    assert depths == sorted({depth // page * page for depth in inside})
    assert rounded == sum(depth % page != 0 for depth in inside)
    for depth, kind in places:
        assert (kind) in [k for d, k in wanted if d // page * page == depth]


def test_a_chunked_prefill_takes_each_place_once():
    wanted = [(70, Kind.BRANCH), (128, Kind.SYSTEM_END), (250, Kind.GHOST_FORK)]
    chunks = [(0, 64), (64, 128), (128, 192), (192, 256)]
    taken = [places_in(wanted, start, end, 1)[0] for start, end in chunks]
    assert taken == [
        [],
        [(70, Kind.BRANCH), (128, Kind.SYSTEM_END)],
        [],
        [(250, Kind.GHOST_FORK)],
    ]


def test_of_places_on_one_page_the_first_names_the_kind():
    wanted = [(130, Kind.GHOST_FORK), (129, Kind.SYSTEM_END), (128, Kind.BRANCH)]
    assert places_in(wanted, 0, 200, 64) == ([(128, Kind.BRANCH)], 2)


def test_rows_behind_the_prefill_of_a_mixed_batch_change_nothing():
    alone, mixed = (
        ChunkPlan(chunk_tokens=64, window_tokens=3),
        ChunkPlan(chunk_tokens=64, window_tokens=3),
    )
    for plan in (alone, mixed):
        plan.add_row(100, [70])
        plan.add_row(10, [1])
    for _ in range(3):  # rows that decode, one token each
        mixed.add_row(1, [])
    for name in ("rows", "ends", "chunks", "starts", "window_index", "window_rows"):
        assert getattr(alone, name) == getattr(mixed, name)

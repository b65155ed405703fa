"""The project's own format: what is written is read back."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hybrid.sim.trace import TraceBuilder
from sglang_hybrid.sim.traces import TraceError, TraceReport, load_trace, write_trace
from sglang_hybrid.sim.traces.order import reorder

from .trace_files import NATIVE, write_lines

SYMBOLS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def traces(draw):
    """Any trace: sessions, branches off earlier requests, partial symbols, missing times."""
    width = draw(st.sampled_from([1, 3, 64]))
    builder = TraceBuilder(draw(st.text(max_size=5)), width, draw(st.lists(st.text(max_size=9))))
    lengths = []
    time = 0.0
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(-1, index - 1))
        keep = draw(st.integers(0, lengths[parent])) if parent >= 0 else 0
        tokens = draw(st.integers(max(1, (keep - 1) * width + 1), (keep + 4) * width))
        symbols = -(-tokens // width)
        lengths.append(symbols)
        input_len = draw(st.integers(1, tokens))
        time += draw(st.floats(0, 1e6))
        builder.add_difference(
            draw(
                st.lists(
                    st.integers(-(2**63), 2**63 - 1),
                    min_size=symbols - keep,
                    max_size=symbols - keep,
                )
            ),
            input_len,
            tokens - input_len,
            parent=parent,
            keep=keep,
            session=draw(st.sampled_from([None, "a", "b"])),
            arrival=draw(st.sampled_from([None, time])),
            system_len=draw(st.sampled_from([None, 0, input_len])),
        )
    return builder.build()


def assert_equal(a, b):
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


@settings(max_examples=50, deadline=None)
@given(trace=traces(), suffix=st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_round_trip(trace, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"trace{suffix}")
        write_trace(trace, path)
        assert_equal(load_trace(path, strict=True), trace)


def test_compressed_files_of_equal_traces_are_equal(tmp_path):
    trace = load_trace(write_lines(tmp_path, NATIVE))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(trace, tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert (tmp_path / "a.jsonl.gz").read_bytes().startswith(b"\x1f\x8b")


@settings(max_examples=60, deadline=None)
@given(trace=traces(), data=st.data())
def test_other_orders_and_subsets_keep_every_sequence(trace, data):
    order = data.draw(st.permutations(range(len(trace))))
    order = np.array(order[: data.draw(st.integers(1, len(trace)))], dtype=np.int64)
    other = reorder(trace, order, trace.arrival[order])
    assert len(other.symbols) <= sum(len(trace.sequence(r)) for r in order.tolist())
    for index, request in enumerate(order.tolist()):
        np.testing.assert_array_equal(other.sequence(index), trace.sequence(request))
        assert other.parent[index] < index
        assert other.input_len[index] == trace.input_len[request]
        before, after = trace.session[request], other.session[index]
        assert (before < 0) == (after < 0)
        if before >= 0:
            assert other.session_names[after] == trace.session_names[before]


def test_differences_stay_as_they_were_written(tmp_path):
    trace = load_trace(write_lines(tmp_path, NATIVE))
    assert trace.parent.tolist() == [-1, 0]
    assert trace.keep.tolist() == [0, 4]
    assert trace.sequence(1).tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.system_len.tolist() == [-1, 2]
    assert trace.arrival.tolist() == [0.5, 1.5]


def test_numbers_of_parents_count_lines_that_were_left_out(tmp_path):
    lines = [
        NATIVE[0],
        '{"symbols": [',
        NATIVE[1],
        {**NATIVE[2], "parent": 0},
        {**NATIVE[2], "parent": 1},
    ]
    report = TraceReport()
    trace = load_trace(write_lines(tmp_path, lines), report=report)
    assert trace.sequence(1).tolist() == [1, 2, 3, 4, 5, 6]
    reasons = [problem.reason for problem in report.problems]
    assert len(reasons) == 2
    assert "parent 0 is not among the requests read before" in reasons[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"symbols": [1, 2, 3.5, 4]}, "something else than integers"),
        ({"symbols": [1, 2, 3, True]}, "something else than integers"),
        ({"symbols": [1, 2, 3, 2**63]}, "out of bounds|too large"),
        ({"t": 0.1}, "comes after"),
        ({"parent": 0, "keep": 9}, "are needed"),
        ({"input_len": "3"}, '"input_len" is a string; allowed: an integer'),
    ],
)
def test_malformed_requests(tmp_path, change, reason):
    path = write_lines(tmp_path, [*NATIVE[:2], {**NATIVE[1], **change}])
    with pytest.raises(TraceError, match=reason):
        load_trace(path, strict=True)


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"tokens_per_symbol": 0}, {"name": 3}, {"format": "else"}]
)
def test_a_header_of_another_version_is_refused(tmp_path, change):
    path = write_lines(tmp_path, [{**NATIVE[0], **change}, NATIVE[1]])
    with pytest.raises(TraceError, match=r"trace.jsonl:1: .*(allowed|known)"):
        load_trace(path)

"""Traces of block hashes: Mooncake, coding agents, records of a server."""

import numpy as np
import pytest

from sglang_hybrid.sim.traces import TraceError, TraceReport, load_trace

from .trace_files import (
    CLAUDE_CODE,
    MOONCAKE,
    SERVER_RECORD,
    claude_request,
    claude_session,
    write_lines,
)


def common(trace, a, b):
    """Symbols that two requests share from the start."""
    x, y = trace.sequence(a), trace.sequence(b)
    n = min(len(x), len(y))
    return int(np.argmin(np.append(x[:n] == y[:n], False)))


def test_a_continued_request_produced_what_continues_it(tmp_path):
    trace = load_trace(write_lines(tmp_path, MOONCAKE))
    assert trace.tokens_per_symbol == 512
    assert trace.arrival.tolist() == [0, 2, 3]
    # Two full blocks of prompt; the third, which is the last, comes from the next request.
    assert [len(trace.sequence(r)) for r in range(3)] == [3, 4, 2]
    assert trace.sequence(1)[:3].tolist() == trace.sequence(0).tolist() == [0, 1, 2]
    assert common(trace, 0, 2) == 1
    assert any("taken to have produced" in text for text in trace.assumptions)
    assert any("blocks of 512" in text for text in trace.assumptions)


def test_outputs_may_be_taken_as_unique(tmp_path):
    trace = load_trace(write_lines(tmp_path, MOONCAKE), outputs="unique")
    assert common(trace, 0, 1) == 2
    assert [len(trace.sequence(r)) for r in range(3)] == [3, 4, 2]


def test_a_continuation_comes_later_and_holds_the_whole_answer(tmp_path):
    def line(t, input_len, output_len, *ids):
        return {
            "timestamp": t,
            "input_length": input_len,
            "output_length": output_len,
            "hash_ids": list(ids),
        }

    first = line(0, 600, 700, 0, 1)
    at_once, short = line(0, 2000, 1, 0, 2, 3, 4), line(5, 1290, 1, 0, 5, 6)
    enough = line(6, 1300, 1, 0, 7, 8)
    trace = load_trace(write_lines(tmp_path, [first, at_once, short, enough]))
    assert common(trace, 0, 1) == common(trace, 0, 2) == 1
    assert common(trace, 0, 3) == 3
    too_late = [short] * 4
    trace = load_trace(write_lines(tmp_path, [first, *too_late, enough]))
    assert common(trace, 0, 5) == 1


@pytest.mark.parametrize("ids", [[1, 0, 3, 4], [0, 3, 1, 4], [9, 1, 8, 4], [9, 9, 8, 4]], ids=str)
def test_ids_that_are_no_chain_are_reported(tmp_path, ids):
    bad = {"timestamp": 4000, "input_length": 1600, "output_length": 1, "hash_ids": ids}
    report = TraceReport()
    trace = load_trace(write_lines(tmp_path, [*MOONCAKE, bad]), report=report, outputs="unique")
    assert len(trace) == 3
    assert "the ids are no chain" in str(report.problems[0])


def test_requests_out_of_order_are_sorted(tmp_path):
    trace = load_trace(write_lines(tmp_path, MOONCAKE[::-1]))
    assert trace.input_len.tolist() == [1100, 1600, 600]


def test_sessions_of_agents_share_the_system_prompt_of_equal_lengths(tmp_path):
    other = claude_session("c2", claude_request(0.0, 210, 20, [1, 3]), tools=65)
    trace = load_trace(write_lines(tmp_path, [*CLAUDE_CODE, other]), arrival="all-at-once")
    by_name = {
        name: np.flatnonzero(trace.session == n) for n, name in enumerate(trace.session_names)
    }
    c0, c1, c2 = by_name["c0"].tolist(), by_name["c1"].tolist(), by_name["c2"].tolist()
    assert common(trace, c0[0], c1[0]) == 2
    assert common(trace, c0[0], c2[0]) == 0
    assert trace.system_len[c0].tolist() == [128, -1, 128]
    # The subagent starts 1 s after its marker and shares nothing.
    assert trace.input_len[c0].tolist() == [200, 100, 400]
    assert trace.arrival[c0].tolist() == [0, 5, 9]
    assert common(trace, c0[0], c0[1]) == 0
    # 200 + 30 tokens are 4 blocks; the later prompt of 6 continues them.
    assert common(trace, c0[0], c0[2]) == 4


def test_sessions_of_agents_run_side_by_side_without_duplicates_and_long_ones(tmp_path):
    sessions = [
        claude_session(f"s{n}", *(claude_request(t, 200 + n, 30, [1, 3]) for t in (0, 10, 5000)))
        for n in range(30)
    ]
    long = claude_session("long", claude_request(0.0, 140_000, 1, [1, 2187]))
    path = write_lines(tmp_path, [*sessions, {**sessions[0], "id": "again"}, long])
    trace = load_trace(path)
    assert len(trace) == 90
    spans = [trace.arrival[trace.session == s] for s in range(30)]
    assert all(span[-1] - span[0] == pytest.approx(1810) for span in spans)
    running = [sum(s[0] <= t < s[-1] for s in spans) for t in trace.arrival]
    assert max(running) == 10
    said = " ".join(trace.assumptions)
    assert "1 exact duplicates" in said
    assert "1 sessions with prompts of more than 131072 tokens" in said
    assert "10 at a time" in said and "capped at 1800 s" in said
    assert len(load_trace(path, max_input_tokens=0)) == 91


def test_hashes_of_namespaces_are_different_symbols(tmp_path):
    trace = load_trace(write_lines(tmp_path, SERVER_RECORD))
    assert trace.tokens_per_symbol == 4
    assert trace.arrival.tolist() == [0, 1, 2]
    assert [len(trace.sequence(r)) for r in range(3)] == [3, 3, 2]
    assert common(trace, 0, 1) == 1
    assert common(trace, 0, 2) == 0
    assert len(set(trace.symbols.tolist())) == len(trace.symbols) == 7


def test_a_record_may_tell_where_its_system_message_ends(tmp_path):
    lines = [{**SERVER_RECORD[0], "system_len": 5}, {**SERVER_RECORD[1], "system_len": None}]
    trace = load_trace(write_lines(tmp_path, [*lines, SERVER_RECORD[2]]))
    assert trace.system_len.tolist() == [5, -1, -1]


@pytest.mark.parametrize(
    ("system_len", "reason"),
    [(8, "system_len 8 is more than input_len 7"), (-1, '"system_len" is -1'), ("x", "a string")],
)
def test_a_wrong_end_of_the_system_message_is_reported(tmp_path, system_len, reason):
    lines = [{**SERVER_RECORD[0], "system_len": system_len}, *SERVER_RECORD[1:]]
    report = TraceReport()
    assert len(load_trace(write_lines(tmp_path, lines), report=report)) == 2
    assert reason in report.problems[0].reason


def test_pages_of_two_sizes_are_refused(tmp_path):
    path = write_lines(tmp_path, [SERVER_RECORD[0], {**SERVER_RECORD[1], "page": 1}])
    with pytest.raises(TraceError, match=r"trace.jsonl:2: pages of 1 tokens after pages of 4"):
        load_trace(path)


def test_blocks_of_two_sizes_are_refused(tmp_path):
    path = write_lines(tmp_path, [CLAUDE_CODE[0], {**CLAUDE_CODE[1], "block_size": 70}])
    with pytest.raises(TraceError, match=r"trace.jsonl:2: blocks of 70 tokens after blocks of 64"):
        load_trace(path)


def test_a_record_that_is_no_chain_leaves_the_others_alone(tmp_path):
    bad = {**SERVER_RECORD[1], "hashes": ["z", "b"]}
    lines = [SERVER_RECORD[0], bad, *SERVER_RECORD[1:]]
    report = TraceReport()
    trace = load_trace(write_lines(tmp_path, lines), report=report)
    assert [problem.place for problem in report.problems] == ["2"]
    assert len(trace) == 3
    assert common(trace, 0, 1) == 1
    assert len(set(trace.symbols.tolist())) == len(trace.symbols)

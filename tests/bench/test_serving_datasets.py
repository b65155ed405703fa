"""Files that bench/serving writes for its drivers."""

import json

import numpy as np
import pytest
from chat_traces import read_trace
from serving_cases import SYSTEM, workload

from bench.serving import datasets
from bench.serving.datasets import Cut, Mooncake


def test_replayed_sessions_are_the_turns_that_were_written(trace, tmp_path):
    cut = Cut(keep=2, max_turns=2, max_bytes=10_000, reply_bytes=16)
    sessions = datasets.recorded_sessions(trace, cut, 3, seed=1)
    out = tmp_path / "sessions.jsonl"
    datasets.write_sessions(out, sessions)
    read = read_trace(out)
    assert not read.problems
    assert [c.name for c in read.conversations] == [name for name, _ in sessions]
    for conversation, (_, turns) in zip(read.conversations, sessions, strict=True):
        assert [list(turn.messages) for turn in conversation.turns] == turns
        assert len(turns) <= 2
        assert turns[0][0]["content"] == SYSTEM[:40]


def test_a_session_ends_before_a_longer_prompt(trace):
    whole = 8 + 80 + 8 + 41 + (16 + 8) + (8 + 24)  # the first two turns, replies included
    for bytes_, turns in ((whole, 2), (whole - 1, 1), (136, 0)):
        cut = Cut(keep=1, max_turns=9, max_bytes=bytes_, reply_bytes=16)
        assert len(cut.conversation(read_trace(trace).conversations[2])) == turns


def test_too_few_conversations_are_named(trace):
    cut = Cut(keep=1, max_turns=9, max_bytes=10_000, reply_bytes=16)
    with pytest.raises(ValueError, match=r"trace\.jsonl has 3 conversations that fit; 4"):
        datasets.recorded_sessions(trace, cut, 4, seed=0)


def test_attempts_at_a_task_share_its_first_turns():
    branching = workload("branching", tasks=3, attempts=4, parts=(2, 3), turns=(5, 5))
    sessions = dict(branching.sessions(7))
    assert len(sessions) == 12
    assert sessions == dict(branching.sessions(7)) != dict(branching.sessions(8))
    systems = {turns[0][0]["content"] for turns in sessions.values()}
    assert len(systems) == 1
    for task in range(3):
        attempts = [sessions[f"task-{task}-attempt-{number}"] for number in range(4)]
        assert all(attempt[:2] == attempts[0][:2] for attempt in attempts)
        assert len({json.dumps(attempt[3]) for attempt in attempts}) == 4
    assert sessions["task-0-attempt-0"][0] != sessions["task-1-attempt-0"][0]


def _record(time, *ids):
    return {"timestamp": time, "input_length": 0, "output_length": 300, "hash_ids": list(ids)}


def test_a_cut_mooncake_segment_shares_what_it_shared():
    records = [_record(0, *range(10)), _record(3000, *range(6), 90, 91), _record(6000, 70)]
    first, second, third = Mooncake(every=2, max_blocks=9, max_output=16).segment(records, 3, 0)
    assert first["hash_ids"] == [0, 2, 4, 6, 8, 9]
    assert second["hash_ids"] == [0, 2, 4, 90, 91]
    assert third["hash_ids"] == [70]
    assert {first["output_length"], third["output_length"]} == {16}
    assert datasets.trace_seconds([first, second, third]) == 6


def test_another_seed_takes_later_requests_that_fit():
    records = [_record(1000 * number, *range(number % 3 + 1)) for number in range(30)]
    cut = Mooncake(every=1, max_blocks=2, max_output=16)
    segments = [cut.segment(records, 5, seed) for seed in (0, 1)]
    times = [[record["timestamp"] for record in segment] for segment in segments]
    assert times == [[0, 1000, 3000, 4000, 6000], [7000, 9000, 10000, 12000, 13000]]
    with pytest.raises(ValueError, match="20 requests of the trace fit; 21 are needed"):
        cut.segment(records, 21, 0)
    with pytest.raises(ValueError, match="come at once"):
        cut.segment([_record(0, 1), _record(0, 1)], 2, 0)


def test_made_up_text_has_the_bytes_that_were_asked():
    text = datasets.words(np.random.default_rng(0), 500)
    assert len(text.encode()) == 500
    assert 50 < text.count(" ") < 120

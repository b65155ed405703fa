"""Workloads and reports of bench/tuning."""

import gzip
import itertools
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
pytest.importorskip("numba")
pytest.importorskip("prometheus_client")

from bench.tuning import report
from bench.tuning.runs import recorded_replies
from bench.tuning.servers import Server
from bench.tuning.sessions import HEADER, Sessions
from bench.tuning.simulate import windows
from bench.tuning.streams import Request, Stream
from bench.tuning.workloads import Pools, make_stream
from sglang_hybrid.model.tokenizer import TURN_END_ID, TURN_START_ID

CONVERSATION = Stream(
    "s", (Request((1, 2), 3, session="a"), Request((9,), 2), Request((3,), 2, 0, "a"))
)
REPLIES = [[5, 6, 7], [8, 8], [4, 4]]


def test_a_conversation_continues_its_reply():
    assert CONVERSATION.prompt(2, REPLIES) == [1, 2, 5, 6, 7, 3]
    assert CONVERSATION.prompt_tokens() == [2, 1, 6]


def test_the_trace_has_no_last_token():
    trace = CONVERSATION.trace(REPLIES)
    assert trace.input_len.tolist() == CONVERSATION.prompt_tokens()
    assert trace.sequence(0).tolist() == [1, 2, 5, 6]
    assert trace.sequence(2).tolist() == [1, 2, 5, 6, 7, 3, 4]


@pytest.mark.parametrize("name", ["tenants", "topics", "drift"])
def test_a_workload_is_the_same_for_the_same_seed(name):
    stream = make_stream(name, None, 60, 3)
    assert len(stream) == 60
    assert stream == make_stream(name, None, 60, 3) != make_stream(name, None, 60, 4)
    assert max(stream.prompt_tokens()) < Pools.kv_tokens / 2


def test_drift_comes_back_to_its_prefixes():
    stream = make_stream("drift", None, 600, 0)
    parts = [request.part for request in stream.requests]
    assert parts == ["A"] * 200 + ["B"] * 200 + ["A"] * 200
    long = [
        {r.own[:600] for r in stream.requests[a:b] if len(r.own) > 600}
        for a, b in ((0, 200), (400, 600))
    ]
    assert long[0] & long[1]


@pytest.fixture
def traces(tmp_path):
    def conversation(number):
        messages = [{"role": "system", "content": "be kind" * 8}]
        for turn in range(3):
            messages += [
                {"role": "user", "content": f"{number}{turn}" * 8},
                {"role": "assistant", "content": "fine"},
            ]
        return {"id": str(number), "messages": messages}

    with gzip.open(tmp_path / "talks.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(conversation(number)) + "\n" for number in range(6))
    return tmp_path


def test_sessions_are_cut_and_interleaved(traces):
    sessions = Sessions("talks.jsonl.gz", 8, open_sessions=3, think=2)
    stream = sessions.stream("talks", traces, 20, 0)
    first = stream.requests[0]
    assert first.own[:8] == (TURN_START_ID, *b"system\n")
    assert first.own[8:16] == (*b"be kind", TURN_END_ID) and first.own[-len(HEADER) :] == HEADER
    seen = set()
    for number, request in enumerate(stream.requests):
        assert request.parent < number
        assert (request.session in seen) == (request.parent >= 0)
        if request.parent >= 0:
            assert stream.requests[request.parent].session == request.session
            assert request.own[0] == TURN_END_ID
        seen.add(request.session)
    turns = [request.session for request in stream.requests]
    assert sum(a != b for a, b in itertools.pairwise(turns)) > 10


def test_a_session_ends_before_a_prompt_that_is_too_long(traces):
    sessions = Sessions("talks.jsonl.gz", 8, open_sessions=2, think=2, max_prompt_tokens=90)
    stream = sessions.stream("talks", traces, 20, 0)
    assert 40 < max(stream.prompt_tokens()) <= 90


def test_servers_by_name_or_configuration():
    assert Server.parse("stock").flags() == []
    assert '{"policy": "lru"}' in Server.parse("lru").flags()
    assert Server.parse('sharp={"policy": "utility", "alpha": 1}').config["alpha"] == 1
    for text in ("nobody", "sharp={", "sharp=1", '={"policy": "lru"}'):
        with pytest.raises(ValueError, match="allowed: stock, lru"):
            Server.parse(text)


def test_workloads_that_cannot_be_made():
    with pytest.raises(ValueError, match="'nobody' is not known; allowed: tenants"):
        make_stream("nobody", None, 10, 0)
    with pytest.raises(ValueError, match="give --traces"):
        make_stream("chat", None, 10, 0)


def test_replies_of_another_stream_are_refused(tmp_path):
    assert recorded_replies(tmp_path, CONVERSATION) is None
    path = tmp_path / "replies-s.json"
    path.write_text(json.dumps(REPLIES))
    assert recorded_replies(tmp_path, CONVERSATION) == REPLIES
    path.write_text(json.dumps(REPLIES[:2]))
    with pytest.raises(ValueError, match=r"2 replies of another stream; 3 .* remove the file"):
        recorded_replies(tmp_path, CONVERSATION)


def test_windows_and_switches():
    assert windows([10, 10, 20], [5, 10, 2], size=2) == [0.75, 0.1]
    tuning = {"policy": "utility", "arm": "utility", "alpha": 0.5}
    sampled = {"policy": "density", "arm": "density", "alpha": 0.5}
    looks = [tuning, tuning, sampled, sampled, tuning]
    run = {"status": [{"request": 20 * i, "tuning": look} for i, look in enumerate(looks)]}
    assert report.switches(run) == [
        {"request": 0, "arm": "utility", "alpha": 0.5},
        {"request": 40, "arm": "density", "alpha": None},
        {"request": 80, "arm": "utility", "alpha": 0.5},
    ]
    assert report.switches({"status": [{"request": 0, "tuning": None}, {"request": 20}]}) == []

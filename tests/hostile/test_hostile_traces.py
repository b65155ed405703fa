"""Trace files of any content: a trace, or an error with file and place, in bounded memory."""

import bz2
import gzip
import json
import lzma
import resource
import tempfile
from pathlib import Path

import pytest
import zstandard
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from trace_files import BY_FORMAT, json_lines

from sglang_hybrid.sim.traces import TraceError, TraceReport, load_trace
from sglang_hybrid.sim.traces.conversations import without_thoughts

PACKED = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}
JUNK = st.sampled_from(
    [b"", b"\0", b"\xff", b"[" * 2000, b'{"a":' * 2000, b"9" * 400, b"NaN", b"null", b"-1"]
) | st.binary(max_size=4)
SMALL = 2_000_000


def read(data, format="auto", **options):
    """The trace in a file of ``data``, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.jsonl")
        file.write_bytes(data)
        report = TraceReport()
        try:
            trace = load_trace(file, format=format, report=report, **options)
        except ValueError as error:
            assert len(str(error)) < 1500 and str(error).isprintable()
            return error
        finally:
            assert all(str(each).isprintable() for each in report.problems)
            assert all(len(str(each)) < 500 for each in report.problems)
    assert len(trace) and int(trace.input_len.min()) >= 1
    for request in range(len(trace)):
        tokens = int(trace.input_len[request] + trace.output_len[request])
        assert len(trace.sequence(request)) == -(-tokens // trace.tokens_per_symbol)
    return trace


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("name", BY_FORMAT)
@examples(12)
@given(data=st.data())
def test_damaged_bytes(name, packing, data):
    good = bytearray(json_lines(BY_FORMAT[name]))
    inside = data.draw(st.booleans())
    if not inside:
        good = bytearray(PACKED[packing](bytes(good)))
    at = data.draw(st.integers(0, len(good)))
    good[at : at + data.draw(st.integers(0, 8))] = data.draw(JUNK)
    if data.draw(st.booleans()):
        del good[data.draw(st.integers(0, len(good))) :]
    damaged = PACKED[packing](bytes(good)) if inside else bytes(good)
    read(damaged, data.draw(st.sampled_from(["auto", name])), max_memory=SMALL)


@examples(60)
@given(st.binary(max_size=60), st.sampled_from(["auto", *BY_FORMAT]))
def test_any_bytes(data, name):
    read(data, name, max_memory=SMALL)


DEEP = "[" * 600 + "]" * 600


@pytest.mark.parametrize(
    "line",
    [
        '{"messages": [{"role": "user", "content": "x"}, '
        '{"role": "assistant", "content": "y", "tool_calls": %s}]}',
        '{"messages": [{"role": "user", "content": [{"text": %s}]}, {"role": "assistant"}]}',
        '{"messages": [{"role": %s}]}',
        '{"id": %s, "block_size": 64, "tool_tokens": 0, "system_tokens": 0, '
        '"requests": [{"t": 0, "in": 5, "out": 1, "hash_runs": []}]}',
        '{"block_size": 64, "tool_tokens": 0, "system_tokens": 0, '
        '"requests": [{"t": 0, "in": 5, "out": 1, "hash_runs": [], "x": %s}]}',
        '{"format": %s, "version": 1, "name": "x", "tokens_per_symbol": 1}',
        '{"format": "hybrid-marconi-trace", "version": 1, "name": "x", '
        '"tokens_per_symbol": 1, "assumptions": [%s]}',
        '{"hashes": %s, "page": 4, "input_len": 5, "output_len": 1}',
    ],
)
def test_nested_deeply(line):
    read((line.replace("%s", DEEP)).encode())


def subagents(depth):
    inner = '{"t": 0, "in": 70, "out": 1, "hash_runs": [[1, 1]]}'
    for _ in range(depth):
        inner = '{"t": 0, "type": "subagent", "requests": [%s]}' % inner  # noqa: UP031
    head = '{"id": "a", "block_size": 64, "tool_tokens": 0, "system_tokens": 0, "requests": ['
    return f"{head}{inner}]}}".encode()


@pytest.mark.parametrize("depth", [3, 100, 200, 450])
def test_nested_subagents(depth):
    read(subagents(depth))


NATIVE = BY_FORMAT["hybrid-marconi-trace"]
HUGE = {
    "server-record": [
        {"page": 1, "hashes": [], "input_len": 2**24, "output_len": 2**24} for _ in range(50)
    ],
    "mooncake": [
        {"timestamp": i, "input_length": 1, "output_length": 2**24, "hash_ids": [0]}
        for i in range(5000)
    ],
    "claude-code": [
        {
            "block_size": 1,
            "tool_tokens": 2**24,
            "system_tokens": 2**24,
            "requests": [{"t": 0, "in": 2**24, "out": 0, "hash_runs": [[1, 2**24]]}] * 50,
        }
    ],
    "hybrid-marconi-trace": [
        {**NATIVE[0], "tokens_per_symbol": 2**24},
        *({"symbols": [i, 1], "input_len": 2**24, "output_len": 9} for i in range(5000)),
    ],
}


@pytest.mark.parametrize("name", HUGE)
def test_lengths_that_nothing_bears_out(name):
    """A few lines that stand for gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = read(json_lines(HUGE[name]), name, max_memory=SMALL)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert isinstance(error, TraceError)
    assert "trace.jsonl:" in str(error) and "--trace-memory" in str(error)
    assert grown < 64 * 1024


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz", "zstd"])
@pytest.mark.parametrize("content", [b" " * 2**24, b"x\n" * 2**20, b'{"a":"' + b"x" * 2**24])
def test_compressed_bombs(packing, content):
    packed = PACKED[packing](content)
    assert len(packed) < len(content) / 500
    error = read(packed, max_memory=SMALL)
    assert isinstance(error, TraceError) and "--trace-memory" in str(error)


def test_tokens_beyond_any_request():
    lines = [NATIVE[0], {"symbols": [1], "input_len": 2**70, "output_len": 0}, NATIVE[1]]
    lines[0] = {**NATIVE[0], "tokens_per_symbol": 2**24}
    assert "2^" not in str(read(json_lines(lines)))
    header = {**NATIVE[0], "tokens_per_symbol": 2**62}
    assert isinstance(read(json_lines([header, NATIVE[1]])), TraceError)


def test_long_conversations_take_linear_work():
    """Turns are stored and made as differences: a history is not copied for every reply."""
    from sglang_hybrid.sim.traces.conversations import Message, TurnEncoder
    from sglang_hybrid.sim.traces.tokenizers import ByteTokenizer

    messages = [Message("user" if i % 2 == 0 else "assistant", f"{i}") for i in range(6000)]
    turns = list(TurnEncoder(ByteTokenizer(), "chatml").turns(messages))
    longest = turns[-1].input_len + turns[-1].output_len
    assert len(turns) == 3000 and sum(len(turn.own) for turn in turns) <= 2 * longest


def test_think_blocks_that_never_close():
    text = "<think>" * 200_000
    assert without_thoughts(text) == text
    assert without_thoughts("a<think>b</think> \n c<think>d") == "a" + "c<think>d"


def test_more_places_than_sessions():
    file = json_lines(BY_FORMAT["messages"])
    assert len(read(file, arrival="concurrent:1000000000000")) == 3


def test_the_limit_has_a_flag(tmp_path, capsys):
    from sglang_hybrid.cli import main

    file = tmp_path / "trace.jsonl"
    file.write_bytes(json_lines(HUGE["server-record"]))
    for size, problem in (("1MB", "raise it"), ("0", "--trace-memory"), ("x", "--trace-memory")):
        assert main.main(["replay", "--trace", str(file), "--trace-memory", size]) == 2
        err = capsys.readouterr().err
        assert problem in err and err.count("\n") == 1


def test_what_is_read_is_json_of_any_kind():
    for value in (None, True, 5, "x", [], {}, [[]], [None]):
        assert isinstance(read(json.dumps(value).encode()), TraceError)

"""`hybrid-marconi record` against a stand-in, and the server's side of it."""

import base64
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from observed import observed, status

from sglang_hybrid.adapter import record_export
from sglang_hybrid.adapter.record_export import RecordExport
from sglang_hybrid.cli import main, record
from sglang_hybrid.shadow.records import WindowBuilder

TEXT = "".join(f'{{"ns": "{i}", "page": 64}}\n' for i in range(300))


def run(server, out, *flags):
    return main.main(["record", "--url", server.url, "--out", str(out), *flags])


def test_a_record_in_many_parts_arrives_whole(tmp_path, capsys):
    with observed([[status()]], [TEXT]) as server:
        assert run(server, tmp_path / "r.jsonl") == 0
    assert (tmp_path / "r.jsonl").read_text() == TEXT
    assert "300 requests" in capsys.readouterr().out
    assert server.requests[0] == 0 == server.requests[-1]  # dropped before and after
    assert max(server.requests) > 3


def test_a_part_that_another_client_got_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_POLL_S", 0.01)
    with observed([[status()]], [TEXT], thefts=3) as server:
        assert run(server, tmp_path / "r.jsonl") == 0
    assert (tmp_path / "r.jsonl").read_text() == TEXT


def test_every_dp_rank_has_a_file(tmp_path):
    short = '{"ns": "a"}\n'
    with observed([[status(), status()]], [TEXT, short]) as server:
        assert run(server, tmp_path / "r.jsonl") == 0
    assert (tmp_path / "r.dp0.jsonl").read_text() == TEXT
    assert (tmp_path / "r.dp1.jsonl").read_text() == short


def test_both_keys_are_sent_where_they_belong(tmp_path, capsys):
    out = tmp_path / "r.jsonl"
    with observed([[status()]], [TEXT], key="k", admin_key="a") as server:
        assert run(server, out, "--api-key", "k") == 2
        assert "--admin-api-key" in capsys.readouterr().err
        assert run(server, out, "--api-key", "k", "--admin-api-key", "a") == 0
    assert out.read_text() == TEXT


def test_a_server_that_keeps_no_record(tmp_path, capsys):
    with observed([[status()]], None) as server:
        assert run(server, tmp_path / "r.jsonl") == 2
    assert "record_requests" in capsys.readouterr().err
    assert not (tmp_path / "r.jsonl").exists()


def test_a_file_that_exists_is_kept(tmp_path, capsys):
    out = tmp_path / "r.jsonl"
    out.write_text("mine")
    with observed([[status()]], [TEXT]) as server:
        assert run(server, out) == 2
        assert out.read_text() == "mine" and "--force" in capsys.readouterr().err
        assert run(server, out, "--force") == 0
    assert out.read_text() == TEXT


def test_a_folder_that_is_not_there(tmp_path, capsys):
    with observed([[status()]], [TEXT]) as server:
        assert run(server, tmp_path / "no" / "r.jsonl") == 2
    assert "is no folder" in capsys.readouterr().err


class Cache:
    """A cache of which only the recorder is asked."""

    def __init__(self, requests=0):
        builder = WindowBuilder()
        for i in range(requests):
            builder.add(130, 10, np.arange(2, dtype=np.uint64) + np.uint64(1000 * i), system_len=64)
        self.window = builder.take() if requests else None
        self.recorder = SimpleNamespace(window=lambda: self.window)


def part(export, index):
    """Part ``index``, once it is there."""
    export.ask(index)
    export._export._thread.join()
    return export.take()


def test_the_server_hands_out_salted_records():
    found = part(RecordExport(Cache(requests=3)), 1)
    assert (found["requests"], found["part"], found["parts"]) == (3, 1, 1)
    lines = zlib.decompress(base64.b64decode(found["data"])).decode().splitlines()
    assert len(lines) == 3 and '"input_len": 130' in lines[0] and '"system_len": 64' in lines[0]
    other = part(RecordExport(Cache(requests=3)), 1)
    assert zlib.decompress(base64.b64decode(other["data"])).decode().splitlines() != lines


def test_parts_join_to_the_whole(monkeypatch):
    export = RecordExport(Cache(requests=200))
    whole = part(export, 1)
    monkeypatch.setattr(record_export, "PART_BYTES", 100)
    count = part(export, 1)["parts"]
    pieces = [base64.b64decode(part(export, i)["data"]) for i in range(1, count + 1)]
    assert count > 5 and b"".join(pieces) == base64.b64decode(whole["data"])
    assert "error" in part(export, count + 1)


def test_a_part_is_given_once():
    export = RecordExport(Cache(requests=1))
    assert part(export, 1) is not None and export.take() is None


def test_an_empty_record_is_empty():
    found = part(RecordExport(Cache()), 1)
    assert found["requests"] == 0 and zlib.decompress(base64.b64decode(found["data"])) == b""


@pytest.mark.parametrize("asked", [-1, 0.5, 2])
def test_parts_that_cannot_be(asked):
    assert not RecordExport(Cache(requests=1)).ask(asked)


def test_a_cache_without_a_recorder_says_no():
    assert not RecordExport(SimpleNamespace(recorder=None)).ask(1)


def test_a_record_that_cannot_be_written_says_why(monkeypatch):
    monkeypatch.setattr(record_export, "_COMMAND", ("/bin/false",))
    assert "returned non-zero exit status 1" in part(RecordExport(Cache(requests=1)), 1)["error"]

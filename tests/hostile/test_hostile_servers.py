"""Answers of a server that are none: `top` and `record` end with one line."""

import base64
import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from observed import TUNING, status

from sglang_hybrid.cli import main, record
from sglang_hybrid.cli.server import ServerError
from sglang_hybrid.cli.status import StatusError, check_status
from sglang_hybrid.cli.top_figures import Figures
from sglang_hybrid.cli.top_view import screen

JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 1.5, 2**70, 10**400, float("nan"), float("inf"), "", "x" * 10**5),
        *("[/red]", "[bold", "\x1b[2J\n", "\ud800", [], {}, [[]], {"[/x]": 1}, {"a": {"b": 1}}),
    ]
)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))


@examples(80)
@given(st.data())
def test_a_damaged_status_is_drawn_or_refused(data):
    from rich.console import Console

    good = json.loads(json.dumps(status(TUNING, requests=3)))
    path = data.draw(st.sampled_from([path for path in places(good) if path]))
    part = good
    for key in path[:-1]:
        part = part[key]
    if data.draw(st.booleans()):
        part[path[-1]] = data.draw(JUNK)
    else:
        part[data.draw(st.sampled_from(["[/red]", "a\nb", "x" * 10**4, "k"]))] = part.pop(path[-1])
    try:
        check_status(good)
    except StatusError as error:
        assert str(error).isprintable() and len(str(error)) < 500
        return
    text = Console(width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    figures = Figures.of([good], [status(TUNING)], 2.0)
    text.print(screen(figures, "http://x"))
    json.dumps(figures.as_dict(), allow_nan=False)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(*self.server.info)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"[true]")

    def answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        try:
            self.wfile.write(body)
            while self.server.endless:
                self.wfile.write(body)
        except OSError:
            return

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.info, server.endless = (200, b"{}"), False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(command, server, tmp_path, capsys):
    url = f"http://127.0.0.1:{server.server_port}"
    rest = ["--once"] if command == "top" else ["--out", str(tmp_path / "out.jsonl")]
    assert main.main([command, "--url", url, *rest]) == 2
    captured = capsys.readouterr()
    line = captured.err.removesuffix("\n")
    assert line.startswith(f"hybrid-marconi {command}: ") and line.isprintable()
    assert len(line) < 700 and captured.out == ""
    return line


@pytest.mark.parametrize("command", ["top", "record"])
@pytest.mark.parametrize(
    "info",
    [
        (200, b""),
        (200, b"\xff\xfe"),
        (200, b"[" * 10**5),
        (200, b"null"),
        (200, b'{"internal_states": 5}'),
        (200, b'{"internal_states": [5]}'),
        (200, b'{"internal_states": [{"hybrid_marconi": 5}]}'),
        (200, b'{"internal_states": [{"hybrid_marconi": ["error"]}]}'),
        (
            200,
            b'{"internal_states": [{"hybrid_marconi": {"error": "\\u001b[2J\\n'
            + b"x" * 10**5
            + b'"}}]}',
        ),
        (200, b'{"internal_states": [{}]}'),
        (500, b"\x1b[2J\nsecond line" * 1000),
    ],
    ids=lambda info: ascii(info[1][:45]),
)
def test_an_answer_that_is_none(command, info, server, tmp_path, capsys):
    server.info = info
    run(command, server, tmp_path, capsys)


def test_an_answer_without_an_end(server, tmp_path, capsys):
    server.info, server.endless = (200, b" " * (1 << 20)), True
    assert "more than" in run("top", server, tmp_path, capsys)


GOOD = {
    "export": 1,
    "requests": 1,
    "part": 1,
    "parts": 1,
    "data": base64.b64encode(zlib.compress(b"{}\n")).decode(),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": 10**9},
        {"parts": "1"},
        {"parts": None},
        {"requests": {}},
        {"data": "%%%"},
        {"data": 5},
        {"data": base64.b64encode(b"no zlib").decode()},
        {"data": base64.b64encode(zlib.compress(b"x" * 999)[:-9]).decode()},
        {"data": base64.b64encode(zlib.compress(b"\xff\xff")).decode()},
        {"error": "\x1b[2J\n" + "x" * 10**5},
    ],
    ids=lambda changes: ascii(changes)[:40],
)
def test_a_part_that_is_none(changes, server, tmp_path, capsys):
    part = {**GOOD, **changes}
    body = {"internal_states": [{"hybrid_marconi": {**status(), "record_part": part}}]}
    server.info = (200, json.dumps(body).encode())
    run("record", server, tmp_path, capsys)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_record_that_unpacks_without_bound(monkeypatch):
    monkeypatch.setattr(record, "_MOST_BYTES", 1000)
    data = base64.b64encode(zlib.compress(b"x" * 1001)).decode()
    with pytest.raises(ServerError, match="more than 1000 bytes"):
        record._text([{"data": data}])

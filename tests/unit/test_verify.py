"""`hybrid-marconi verify` against a stand-in for the server."""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_hybrid.cli import verify
from sglang_hybrid.cli.answers import Answer, compare
from sglang_hybrid.cli.expectations import ExpectedCache, ServerTraits

CONFIG = {"min_gain_tokens": 1, "prompt_end": "auto", "chunk_boundary": "first_victims"}


class FakeServer(ThreadingHTTPServer):
    """Serves from an `ExpectedCache` per salt; `error` is added to the tokens it hits."""

    def __init__(self, error=0, wrong_output=False, ours=True):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.error, self.wrong_output, self.ours = error, wrong_output, ours
        self.busy = False
        self.caches = {}

    def info(self):
        status = {
            "config": CONFIG,
            "branch_checkpoint": "exact",
            "checkpoint_grid": 1,
            "decode_grid": 1,
            "counters": dict.fromkeys(verify._PRESSURE, 0),
        }
        return {
            "page_size": 1,
            "chunked_prefill_size": 512,
            "max_req_input_len": 4000,
            "dp_size": 1,
            "internal_states": [{"hybrid_marconi": status}] if self.ours else [{}],
        }

    def answer(self, body):
        traits = ServerTraits("exact", min_gain_tokens=1, chunk_tokens=512)
        cache = self.caches.setdefault(body["extra_key"], ExpectedCache(traits))
        first = sum(body["input_ids"]) % 90
        tokens = [33 + (first + i) % 90 for i in range(body["sampling_params"]["max_new_tokens"])]
        cached = cache.serve(body["input_ids"], tokens)
        if cached and self.wrong_output:
            tokens = [token + 1 for token in tokens]
        meta = {
            "cached_tokens": cached + self.error if cached else 0,
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            "output_top_logprobs": [[[-0.5, t, None], [-2.5, t + 1, None]] for t in tokens],
        }
        return {"meta_info": meta}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._send(200, self.server.info())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/flush_cache":
            if not self.server.busy:
                self.server.caches.clear()
            return self._send(400 if self.server.busy else 200, {})
        return self._send(200, self.server.answer(json.loads(body)))

    def _send(self, status, reply):
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(**options):
        server = FakeServer(**options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(server_or_url, *options):
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    url = server_or_url
    if not isinstance(url, str):
        url = f"http://127.0.0.1:{server_or_url.server_address[1]}"
    return verify.run(parser.parse_args(["--url", url, *options]))


def test_a_right_server_passes_twice(serve, capsys):
    server = serve()
    assert run(server) == 0
    assert run(server) == 0
    out = capsys.readouterr().out
    assert "shared 250, 3." in out and "shared 1141" not in out and "all ok" in out


def test_a_hit_one_token_too_deep_fails(serve, capsys):
    assert run(serve(error=1)) == 1
    assert "only in cached tokens" in capsys.readouterr().out


def test_a_hit_that_answers_differently_fails(serve, capsys):
    assert run(serve(wrong_output=True)) == 1
    assert "differ from a cold request" in capsys.readouterr().out


def test_a_busy_server_is_not_flushed(serve, capsys):
    server = serve()
    server.busy = True
    assert run(server) == 0
    assert "left out: flush" in capsys.readouterr().out


def test_another_cache_is_refused_unless_any_is_allowed(serve, capsys):
    server = serve(ours=False)
    assert run(server) == 2
    assert "does not run --cache hybrid-marconi" in capsys.readouterr().out
    assert run(server, "--any-cache") == 0


def test_an_unreachable_server_is_one_line(capsys):
    assert run("http://127.0.0.1:9") == 2
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1 and "cannot be reached" in lines[0]


def test_a_server_without_hits_is_named():
    row = verify.Row("shared 250, 3.", 300, 250, 0, False, None)
    assert "no request hit" in verify.verdict([row])


@pytest.mark.parametrize(
    ("tokens", "logprobs", "margin", "expected"),
    [
        ([1, 2, 3], [-0.1, -0.2, -0.3], 5.0, (False, False)),
        ([1, 2, 3], [-0.1, -0.2, -0.5], 5.0, (False, True)),
        ([1, 9, 9], [-0.1, -3.0, -3.0], 0.05, (True, False)),
        ([1, 9, 9], [-0.1, -3.0, -3.0], 0.5, (False, True)),
        ([1], [-0.1], 5.0, (False, True)),
    ],
)
def test_answers_agree_within_the_tolerance(tokens, logprobs, margin, expected):
    cold = Answer(0, [1, 2, 3], [-0.1, -0.2, -0.3], [margin] * 3)
    difference = compare(cold, Answer(5, tokens, logprobs, [margin] * 3), tolerance=0.1)
    assert (difference.is_tie, difference.is_wrong) == expected

"""Reading chat traces, replaying them and reporting."""

import asyncio
import gzip
import json
import sys
import threading
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import replay_chat  # noqa: E402
from aiohttp import web  # noqa: E402
from chat_traces import read_trace  # noqa: E402
from replay_report import RequestResult, percentile, summarize  # noqa: E402

CALL = {"function": {"name": "find", "arguments": '{"id": 1}'}}
AGENT = {
    "id": "a",
    "messages": [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "found", "tool_call_id": "7"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ],
}
SHAREGPT = {
    "id": "s",
    "conversations": [
        {"from": "gpt", "value": "welcome"},
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "a"},
    ],
}


def write(tmp_path, text, name="trace.jsonl"):
    path = tmp_path / name
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def roles(turn):
    return [(m["role"], m["content"]) for m in turn.messages]


# ---- readers ----


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_one_request_per_assistant_message(tmp_path, name):
    trace = read_trace(write(tmp_path, json.dumps(AGENT) + "\n", name))
    (conversation,) = trace.conversations
    assert conversation.name == "a" and trace.problems == []
    first, second, third = conversation.turns
    assert roles(first) == [("system", "rules"), ("user", "hello")]
    assert roles(second) == [("user", "find it")]
    assert second.recorded_reply["content"] == '<tool_call>find({"id": 1})</tool_call>'
    assert roles(third) == [("user", "found")]


def test_native_tools_stay_as_they_are(tmp_path):
    trace = read_trace(write(tmp_path, json.dumps(AGENT)), tools="native")
    turns = trace.conversations[0].turns
    assert turns[1].recorded_reply["tool_calls"] == [CALL]
    assert turns[2].messages == ({"role": "tool", "content": "found", "tool_call_id": "7"},)


@pytest.mark.parametrize("text", [json.dumps([SHAREGPT]), json.dumps(SHAREGPT), " [%s]"])
def test_sharegpt_as_list_and_as_lines(tmp_path, text):
    text = text.replace("%s", json.dumps(SHAREGPT))
    (conversation,) = read_trace(write(tmp_path, text, "chat.json")).conversations
    (turn,) = conversation.turns
    assert roles(turn) == [("assistant", "welcome"), ("user", "q")]
    assert turn.recorded_reply["content"] == "a"


def test_only_the_first_conversations_are_read(tmp_path):
    lines = "\n".join(json.dumps({**AGENT, "id": str(i)}) for i in range(5))
    trace = read_trace(write(tmp_path, lines), limit=2)
    assert [c.name for c in trace.conversations] == ["0", "1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "line 2: not JSON"),
        ("7", "line 2: expected an object, found int"),
        ('{"id": 1}', 'neither a list "messages" nor'),
        ('{"messages": [1]}', "a message is int"),
        ('{"messages": [{"role": "wizard", "content": ""}]}', "unknown role 'wizard'"),
        ('{"messages": [{"role": "user", "content": 3}]}', "content is int"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no assistant message"),
        (
            '{"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}',
            "no function name",
        ),
    ],
)
def test_a_malformed_line_is_reported_and_skipped(tmp_path, line, reason):
    text = "\n".join([json.dumps(AGENT), line, json.dumps(AGENT)])
    trace = read_trace(write(tmp_path, text))
    assert len(trace.conversations) == 2
    (problem,) = trace.problems
    assert problem.startswith("trace.jsonl, line 2: ") and reason in problem


def test_a_list_that_is_not_json_names_the_line(tmp_path):
    trace = read_trace(write(tmp_path, "[\n{},\n}", "chat.json"))
    assert trace.problems[0].startswith("chat.json, line 3: not JSON")


# ---- report ----


def test_percentiles_are_measured_values():
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) is None


def test_rates_leave_failed_requests_out():
    results = [
        RequestResult("a", 0, 100, 0, 5, 0.2, 1.0),
        RequestResult("a", 1, 300, 200, 5, 0.1, 1.0),
        RequestResult("b", 0, error="boom"),
    ]
    summary = summarize(results, 2, 9.0, {}, [])
    assert (summary["requests"], summary["errors"]) == (3, 1)
    assert (summary["token_hit_rate"], summary["request_hit_rate"]) == (0.5, 0.5)
    assert summary["ttft_s"] == {"p50": 0.1, "p95": 0.2, "p99": 0.2}
    assert summary["error_messages"] == {"boom": 1}


def test_nothing_served_has_no_rates():
    summary = summarize([], 0, 0.0, {}, [])
    assert summary["token_hit_rate"] is None and summary["ttft_s"]["p50"] is None


# ---- transport, against a stand-in for the endpoint ----


class Endpoint:
    """Streams replies `r0`, `r1`, ...; request number `fails_at` is refused."""

    def __init__(self, fails_at=None, cache_report=True):
        self.fails_at, self.cache_report = fails_at, cache_report
        self.bodies, self.peers = [], []
        self.running = self.most_running = 0

    async def chat(self, request):
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.peers.append(request.transport.get_extra_info("peername"))
        if number == self.fails_at:
            return web.Response(status=500, text="out of luck")
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        reply = web.StreamResponse()
        await reply.prepare(request)
        await asyncio.sleep(0.01)
        usage = {"prompt_tokens": 100, "completion_tokens": 2}
        if number:
            usage["prompt_tokens_details"] = {"cached_tokens": 60}
        deltas = [{"role": "assistant", "content": ""}, {"content": "r"}, {"content": str(number)}]
        events = [{"choices": [{"delta": delta}]} for delta in deltas]
        for event in [*events, {"choices": [], "usage": usage}]:
            await reply.write(f"data: {json.dumps(event)}\n\n".encode())
        await reply.write(b"data: [DONE]\n\n")
        self.running -= 1
        return reply

    async def info(self, request):
        return web.json_response(
            {
                "enable_cache_report": self.cache_report,
                "radix_cache_backend": "hybrid-marconi",
                "internal_states": [{}],
            }
        )

    async def models(self, request):
        return web.json_response({"data": [{"id": "m"}]})

    def start(self):
        """Serve in a thread; returns the URL and a function that ends it."""
        loop, ready, urls = asyncio.new_event_loop(), threading.Event(), []

        async def serve():
            app = web.Application()
            app.router.add_post("/v1/chat/completions", self.chat)
            app.router.add_get("/server_info", self.info)
            app.router.add_get("/v1/models", self.models)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")
            ready.set()

        def work():
            loop.create_task(serve())
            loop.run_forever()

        threading.Thread(target=work, daemon=True).start()
        ready.wait(10)
        return urls[0], lambda: loop.call_soon_threadsafe(loop.stop)


@pytest.fixture
def endpoint(request):
    endpoint = Endpoint(**getattr(request, "param", {}))
    endpoint.url, stop = endpoint.start()
    yield endpoint
    stop()


def run(endpoint, tmp_path, *options, conversations=1):
    lines = "\n".join(json.dumps({**AGENT, "id": str(i)}) for i in range(conversations))
    path, out = write(tmp_path, lines), tmp_path / "report.json"
    arguments = ["--trace", str(path), "--url", endpoint.url, "--json", str(out), "--quiet"]
    status = replay_chat.main([*arguments, *options])
    return status, json.loads(out.read_text()) if out.exists() else None


def history_of(body):
    return [m["content"] for m in body["messages"] if m["role"] == "assistant"]


def test_own_replies_become_history(endpoint, tmp_path):
    status, report = run(endpoint, tmp_path)
    assert status == 0
    assert [history_of(body) for body in endpoint.bodies] == [[], ["r0"], ["r0", "r1"]]
    summary = report["summary"]
    assert (summary["requests"], summary["cached_tokens"]) == (3, 120)
    assert summary["ttft_s"]["p50"] > 0
    assert report["settings"]["trace"] == "trace.jsonl"
    assert endpoint.bodies[0]["stream_options"] == {"include_usage": True}


def test_no_request_depends_on_a_connection_that_was_idle(endpoint, tmp_path):
    run(endpoint, tmp_path)
    assert len(set(endpoint.peers)) == len(endpoint.bodies) == 3


def test_recorded_replies_become_history(endpoint, tmp_path):
    run(endpoint, tmp_path, "--history", "recorded")
    assert history_of(endpoint.bodies[1]) == ["hi"]
    assert history_of(endpoint.bodies[2])[1].startswith("<tool_call>find")


def test_at_most_so_many_conversations_at_a_time(endpoint, tmp_path):
    status, report = run(endpoint, tmp_path, "--concurrency", "2", conversations=5)
    assert status == 0 and report["summary"]["requests"] == 15
    assert endpoint.most_running == 2


@pytest.mark.parametrize("endpoint", [{"fails_at": 1}], indirect=True)
def test_an_error_is_reported_and_ends_its_conversation(endpoint, tmp_path, capsys):
    status, report = run(endpoint, tmp_path)
    assert status == 1
    assert report["summary"]["errors"] == 1
    assert report["summary"]["left_out"] == {"after an error in the same conversation": 1}
    assert "out of luck" in capsys.readouterr().out


def test_long_prompts_are_left_out_and_counted(endpoint, tmp_path):
    status, report = run(endpoint, tmp_path, "--max-prompt-tokens", "180")
    assert status == 0
    assert report["summary"]["requests"] == 1
    assert report["summary"]["left_out"] == {"prompt longer than --max-prompt-tokens": 2}


@pytest.mark.parametrize("endpoint", [{"cache_report": False}], indirect=True)
def test_a_server_that_hides_cached_tokens_is_refused(endpoint, tmp_path, capsys):
    assert run(endpoint, tmp_path) == (2, None)
    assert "--enable-cache-report" in capsys.readouterr().err


def test_an_unreachable_server_is_one_line(tmp_path, capsys):
    path = write(tmp_path, json.dumps(AGENT))
    assert replay_chat.main(["--trace", str(path), "--url", "http://127.0.0.1:9"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_arrivals_are_seeded():
    parse = replay_chat.parser().parse_args
    options = ["--trace", "t", "--pace", "poisson", "--rate", "2"]
    first, again = (replay_chat.arrival_times(500, parse(options)) for _ in range(2))
    assert first == again and first == sorted(first)
    assert 200 < first[-1] < 300
    assert replay_chat.arrival_times(2, parse(["--trace", "t"])) == [0.0, 0.0]

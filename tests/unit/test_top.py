"""`hybrid-marconi top` against a stand-in for the server."""

import io
import json

import pytest
from observed import TUNING, observed, status
from rich.console import Console

from sglang_hybrid.cli import main, top
from sglang_hybrid.cli.top_figures import Figures
from sglang_hybrid.cli.top_view import screen

BEFORE = status(requests=10, prompt_tokens=1000, hit_tokens=100, prompt_flops=1e6)
AFTER = status(
    requests=30,
    prompt_tokens=3000,
    hit_tokens=1100,
    lost_tokens=300,
    prompt_flops=5e6,
    saved_flops=1e6,
    evicted_states=4,
)


def drawn(figures, width=60):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(figures, "http://x"))
    return console.export_text()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_interval_and_total_are_told_apart():
    figures = Figures.of([AFTER], [BEFORE], 4.0)
    assert figures.interval.hit_rate == 0.5
    assert figures.total.hit_rate == pytest.approx(1100 / 3000)
    text = drawn(figures)
    assert line_of(text, "hit rate").split()[-4:] == ["50.0", "%", "36.7", "%"]
    assert line_of(text, "requests per second").split()[-1] == "5.0"
    assert line_of(text, "states").split() == ["states", "4", "4"]


def test_ranks_are_added_up():
    figures = Figures.of([AFTER, AFTER])
    assert figures.total.counters["requests"] == 60
    assert figures.live["branch"] == 6 and figures.live_bytes["branch"] == 6 << 20
    assert "2 DP ranks" in drawn(figures)


def test_a_server_that_started_anew_is_not_negative():
    assert Figures.of([BEFORE], [AFTER], 1.0).interval.counters["requests"] == 10


def test_a_server_without_requests_has_no_rate():
    figures = Figures.of([status()], [status()], 1.0)
    assert figures.interval.hit_rate is None
    assert line_of(drawn(figures), "hit rate").split()[-2:] == ["-", "-"]


def test_the_tuner_is_shown():
    text = drawn(Figures.of([status(TUNING)]))
    assert line_of(text, "arm in force").endswith("utility:alpha=0.5+asked")
    assert line_of(text, "switches").endswith("better 2")
    assert line_of(text, "windows").endswith("7 (1 dropped)")
    assert line_of(text, "realised / predicted").endswith("75.0 %")
    bars = [line.count("█") for line in text.splitlines() if "█" in line]
    assert bars[0] == 2 * bars[1]
    assert "Tuner" not in drawn(Figures.of([status()]))


def test_a_part_that_has_failed_is_shown():
    parts = {
        "order": {"is_on": False, "failures": 1, "error": "KeyError: 7"},
        "saving": {"is_on": True, "failures": 0, "error": ""},
    }
    text = drawn(Figures.of([{**status(), "parts": parts}]))
    assert "order: 1 failures, off, first: KeyError: 7" in text and "saving" not in text


@pytest.mark.parametrize("width", [40, 60, 120])
def test_it_fits_the_terminal(width):
    figures = Figures.of([status(TUNING)], [status(TUNING)], 1.0)
    assert max(map(len, drawn(figures, width).splitlines())) <= width


def test_once_prints_one_look(capsys):
    with observed([[AFTER]]) as server:
        assert main.main(["top", "--url", server.url, "--once"]) == 0
    out = capsys.readouterr().out
    assert "hit rate" in out and "36.7 %" in out


def test_json_is_one_object(capsys):
    with observed([[AFTER]]) as server:
        assert main.main(["top", "--url", server.url, "--once", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["total"]["counters"]["requests"] == 30
    assert shown["interval"] is None and shown["tuning"] == [None]


def test_the_second_look_knows_the_first():
    with observed([[BEFORE], [AFTER]]) as server:
        looks = top._looks(top.Server(server.url, None, 10), 0.01)
        assert next(looks).interval is None
        assert next(looks).interval.counters["requests"] == 20
        looks.close()


@pytest.mark.parametrize(
    ("looks", "key", "said"),
    [
        ([[None]], None, "does not run --cache hybrid-marconi"),
        ([[{"error": "ValueError: no"}]], None, "could not report its cache: ValueError: no"),
        ([[AFTER]], "secret", "answers 401; give the server's key with --api-key"),
    ],
)
def test_what_it_cannot_look_at_is_one_line(looks, key, said, capsys):
    with observed(looks, key=key) as server:
        assert main.main(["top", "--url", server.url, "--once"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_server_that_is_not_there(capsys):
    with observed([[AFTER]]) as server:
        url = server.url
    assert main.main(["top", "--url", url, "--once"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_the_key_is_sent(capsys):
    with observed([[AFTER]], key="secret") as server:
        assert main.main(["top", "--url", server.url, "--once", "--api-key", "secret"]) == 0


@pytest.mark.parametrize("interval", ["0", "-1", "x", "nan", "inf"])
def test_an_interval_that_is_not_allowed(interval, capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["top", "--interval", interval])
    assert raised.value.code == 2
    assert f"{interval} is not allowed; allowed: 0.2 to 86400 seconds" in capsys.readouterr().err

"""Hit rates and times from the drivers' files and from the server's metrics."""

import pytest
from serving_cases import result

from bench.serving import measured

RECORD = {
    "input_lens": [100, 300, 50],
    "cached_tokens": [0, 250, 0],
    "output_lens": [8, 8, 0],
    "ttfts": [0.5, 0.25, 0.0],
    "errors": ["", "", "HTTP 500"],
    "duration": 4.0,
}

METRICS = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 700.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 300.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",model_name="m"} 250.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 9.0
"""


def test_bench_serving_counts_answered_requests_only():
    seen = measured.from_bench_serving(RECORD)
    assert seen.errors == ["HTTP 500"]
    figures = measured.figures(seen.as_json())
    assert figures["hit_rate"] == 250 / 400
    assert figures["requests_per_s"] == 2 / 4
    assert figures["tokens_per_s"] == (400 + 16) / 4
    assert (figures["ttft_p50"], figures["ttft_p99"]) == (0.25, 0.5)


def test_a_request_that_ends_without_a_token_is_an_error():
    seen = measured.from_bench_serving({**RECORD, "errors": ["", "", ""]})
    assert seen.errors == ["no answer, and no error text"]
    assert seen.prompt_tokens == [100, 300]


def test_a_reply_without_text_has_no_time_to_its_first_text():
    seen = measured.from_bench_serving({**RECORD, "ttfts": [0.5, 0.0, 0.0]})
    assert seen.ttft_s == [0.5, None]
    assert measured.figures(seen.as_json())["ttft_p99"] == 0.5


def test_warm_leaves_out_the_first_fifth():
    times = [9.0] * 20 + [None] + [1.0] * 76 + [2.0] * 3
    seen = measured.Measured([10] * 100, [0] * 100, [1] * 100, times, 1.0, [])
    figures = measured.figures(seen.as_json())
    assert (figures["ttft_p95"], figures["ttft_p95_warm"]) == (9.0, 1.0)
    assert figures["ttft_p50"] == 1.0


@pytest.mark.parametrize("missing", ["cached_tokens", "ttfts"])
def test_a_record_without_details_is_refused(missing):
    record = {key: value for key, value in RECORD.items() if key != missing}
    with pytest.raises(ValueError, match=f"wrote no {missing}; it needs --output-details"):
        measured.from_bench_serving(record)


def test_a_prompt_length_that_nobody_reported_is_refused():
    with pytest.raises(ValueError, match="reported no usage"):
        measured.from_bench_serving({**RECORD, "input_lens": [0, 300, 50]})


def test_a_replay_gives_the_same_figures():
    requests = [
        {"prompt_tokens": p, "cached_tokens": c, "completion_tokens": 8, "ttft_s": t, "error": e}
        for p, c, t, e in ((100, 0, 0.5, None), (300, 250, 0.25, None), (0, 0, None, "broken"))
    ]
    seen = measured.from_replay({"requests": requests, "summary": {"seconds": 4.0}})
    assert seen.errors == ["broken"]
    own = measured.from_bench_serving({**RECORD, "errors": ["", "", "broken"]})
    assert measured.figures(seen.as_json()) == measured.figures(own.as_json())


def test_metrics_are_summed_over_labels():
    assert measured.counters(METRICS) == {"prompt_tokens": 1000, "cached_tokens": 300}
    assert measured.counters("") == {"prompt_tokens": 0, "cached_tokens": 0}


def test_the_hit_rate_of_a_run_is_between_two_looks():
    before = {"prompt_tokens": 1000.0, "cached_tokens": 300.0}
    after = {"prompt_tokens": 1500.0, "cached_tokens": 700.0}
    assert measured.hit_rate_between(before, after) == 0.8
    assert measured.hit_rate_between(before, before) is None


def test_a_hit_rate_that_the_metrics_do_not_confirm_is_reported():
    good = result("prefixes", "auto", 0, 0.5, metrics_hit_rate=0.5005)
    bad = result("prefixes", "lru", 1, 0.5, metrics_hit_rate=0.48)
    silent = {**good, "metrics_hit_rate": None}
    first, second = measured.disagreements([good, bad, silent])
    assert first == "prefixes, lru, seed 1: 50.00% by the answers, 48.00% by the metrics"
    assert "nothing by the metrics" in second

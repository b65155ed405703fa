"""What a run measured, from the files of its driver and from the server.

The token hit rate of every arm is cached over prompt tokens as the server reports them in
its answers: `meta_info` of /generate, `usage` and `sglext` of the OpenAI endpoints. SGLang's
Prometheus counters are the second source, kept beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parents[1]))
from replay_report import percentile

PERCENTILES = (50, 95, 99)
COLD = 0.2
"""Share of a run's first requests that "warm" leaves out: while the cache fills, all arms miss."""

AGREEMENT = 0.001
"""Hit rates of the two sources further apart than this are reported."""

_COUNTERS = {
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:cached_tokens_total": "cached_tokens",
}
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Measured:
    """One run. Lists have an entry per request that was answered, roughly in order of arrival:
    `bench_serving` lists conversations in order of arrival, each with its turns, `replay_chat`
    requests as they end.

    Attributes:
        prompt_tokens, cached_tokens, output_tokens: as the server reports them.
        ttft_s: seconds from sending to the first text; None where a reply had none.
        seconds: from the first request to the end of the last.
        errors: of the requests that were not answered.
    """

    prompt_tokens: list[int]
    cached_tokens: list[int]
    output_tokens: list[int]
    ttft_s: list[float | None]
    seconds: float
    errors: list[str]

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["ttft_s"] = [None if t is None else round(t, 4) for t in self.ttft_s]
        values["seconds"] = round(self.seconds, 2)
        return values


def from_bench_serving(record: Mapping[str, Any]) -> Measured:
    """From the record that ``sglang.bench_serving --output-details --cache-report`` writes.

    Raises:
        ValueError: it lacks what these flags add, or prompt lengths.
    """
    names = ("input_lens", "cached_tokens", "output_lens", "ttfts", "errors", "duration")
    missing = [name for name in names if name not in record]
    if missing:
        raise ValueError(
            f"bench_serving wrote no {', '.join(missing)}; it needs --output-details "
            "and --cache-report"
        )
    errors = [error for error in record["errors"] if error]
    served = [number for number, error in enumerate(record["errors"]) if not error]
    # A request that did not succeed may leave no error text; it generated nothing.
    silent = [number for number in served if not record["output_lens"][number]]
    errors += ["no answer, and no error text"] * len(silent)
    served = [number for number in served if number not in set(silent)]

    def of(name: str) -> list[Any]:
        return [record[name][number] for number in served]

    prompt_tokens = of("input_lens")
    if not all(prompt_tokens):
        raise ValueError("bench_serving wrote a prompt length of 0: the server reported no usage")
    ttft_s = [ttft or None for ttft in of("ttfts")]
    return Measured(
        prompt_tokens, of("cached_tokens"), of("output_lens"), ttft_s, record["duration"], errors
    )


def from_replay(report: Mapping[str, Any]) -> Measured:
    """From the report that ``bench/replay_chat.py --json`` writes."""
    served = [request for request in report["requests"] if not request["error"]]
    return Measured(
        [request["prompt_tokens"] for request in served],
        [request["cached_tokens"] for request in served],
        [request["completion_tokens"] for request in served],
        [request["ttft_s"] for request in served],
        report["summary"]["seconds"],
        [request["error"] for request in report["requests"] if request["error"]],
    )


def figures(measured: Mapping[str, Any]) -> dict[str, float]:
    """What is compared, from `Measured.as_json`; times in seconds.

    Raises:
        ValueError: nothing was answered, or all replies are empty.
    """
    ttft_s = measured["ttft_s"]
    seconds = measured["seconds"]
    answered = [value for value in ttft_s if value is not None]
    warm = [value for value in ttft_s[int(COLD * len(ttft_s)) :] if value is not None]
    if not answered or not warm:
        raise ValueError("no request was answered with a text")
    return {
        "hit_rate": sum(measured["cached_tokens"]) / sum(measured["prompt_tokens"]),
        **{f"ttft_p{p}": float(percentile(answered, p) or 0.0) for p in PERCENTILES},
        "ttft_p95_warm": float(percentile(warm, 95) or 0.0),
        "requests_per_s": len(measured["prompt_tokens"]) / seconds,
        "tokens_per_s": (sum(measured["prompt_tokens"]) + sum(measured["output_tokens"])) / seconds,
    }


def read_counters(url: str) -> dict[str, float]:
    """Prompt and cached tokens so far, by SGLang's metrics; summed over labels."""
    reply = requests.get(f"{url}/metrics", timeout=_TIMEOUT_S)
    reply.raise_for_status()
    return counters(reply.text)


def counters(text: str) -> dict[str, float]:
    """As `read_counters`, from the text of ``/metrics``."""
    found = dict.fromkeys(_COUNTERS.values(), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _COUNTERS:
                found[_COUNTERS[sample.name]] += sample.value
    return found


def hit_rate_between(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """By two looks at the counters; None if no prompt was counted between them."""
    prompt = after["prompt_tokens"] - before["prompt_tokens"]
    return (after["cached_tokens"] - before["cached_tokens"]) / prompt if prompt else None


def disagreements(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Runs whose hit rate the server's metrics do not confirm, as lines of a report."""
    lines = []
    for result in results:
        counted, own = result["metrics_hit_rate"], figures(result)["hit_rate"]
        if counted is None or abs(counted - own) > AGREEMENT:
            seen = "nothing" if counted is None else f"{counted:.2%}"
            lines.append(
                f"{result['workload']}, {result['arm']}, seed {result['seed']}: {own:.2%} by the "
                f"answers, {seen} by the metrics"
            )
    return lines

"""SGLang's own readers of the formats that bench/serving writes."""

import pytest
from serving_cases import ASK, SYSTEM, TOOL

pytest.importorskip("sglang")

from sglang.benchmark.datasets.agentic_trace import AgenticTraceDataset
from sglang.benchmark.datasets.sharegpt import sample_sharegpt_requests

from bench.serving import datasets
from bench.serving.datasets import Cut


class Bytes:
    """A tokenizer with a token per byte."""

    def encode(self, text):
        return list(text.encode())


def test_an_agentic_trace_holds_what_each_turn_adds(trace, tmp_path):
    cut = Cut(keep=1, max_turns=9, max_bytes=10_000, reply_bytes=16)
    sessions = datasets.recorded_sessions(trace, cut, 3, seed=0)
    out = tmp_path / "agentic.json"
    datasets.write_agentic_trace(out, sessions, trace.name)
    rows = AgenticTraceDataset(str(out), 3, 16, 0, None).load(None)
    by_length = {len(row.prompt): row.prompt for row in rows}
    assert sorted(by_length) == [1, 2, 3]
    first, second, third = by_length[3]
    assert [message["role"] for message in first] == ["system", "user"]
    assert [m["content"] for m in first] == [SYSTEM, "c" + ASK]
    assert second == third == [{"role": "user", "content": TOOL}]
    assert {row.output_len for row in rows} == {16}
    assert "recorded" not in out.read_text()


def test_short_chats_share_nothing_and_have_the_lengths_that_were_asked(tmp_path):
    out = tmp_path / "chats.json"
    datasets.write_short_chats(out, 50, (40, 800), seed=3)
    rows = sample_sharegpt_requests(str(out), 50, Bytes(), fixed_output_len=16)
    assert len(rows) == 50
    lengths = [row.prompt_len for row in rows]
    assert 40 <= min(lengths) < 80 and 400 < max(lengths) <= 800
    assert len({row.prompt[:8] for row in rows}) == 50

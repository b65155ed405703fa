"""Helpers of the reports under bench/."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
pytest.importorskip("numba")

from bench.pages import change, fill, gigabytes, percent, table
from bench.quality import closed
from bench.replays import infinite_bytes, load_workload, measure
from sglang_hybrid.core.presets import load_model

COSTS = load_model("paper-7b").costs


def test_formats():
    assert (percent(0.1234), change(1.25), gigabytes(12.345e9)) == ("12.3 %", "+25.0 %", "12.3 GB")
    assert table(["a", "b"], [[1, 2]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_fill_replaces_one_place(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("x\n<!-- begin a -->\nold\n<!-- end a -->\ny\n")
    fill(page, "a", r"new \1")
    fill(page, "a", r"new \1")
    assert page.read_text() == "x\n<!-- begin a -->\nnew \\1\n<!-- end a -->\ny\n"
    with pytest.raises(ValueError, match="0 places"):
        fill(page, "b", "text")


def test_closed_gap():
    saved = {"LRU": 0.4, "offline": 0.8, "ours": 0.5}
    assert closed(saved, "ours") == pytest.approx(0.25)
    assert closed({**saved, "offline": 0.405}, "ours") is None


def test_all_that_an_unlimited_cache_holds_is_enough():
    workload = load_workload("gen:shared-prefix?groups=3&prompts=3&system=64")
    size = infinite_bytes(workload, COSTS)
    limited = measure(workload, COSTS, "lru", "marconi", size)
    assert limited == measure(workload, COSTS, "lru", "marconi", None)
    # The third prompt behind each prefix hits.
    assert limited.hit_rate == pytest.approx(3 * 64 / (9 * 192))

"""Which differences are stated, and how tables show them."""

import math

import pytest
from serving_cases import ARMS, result

from bench.serving import report
from bench.serving.spread import paired

TITLES = {name: arm.title for name, arm in ARMS.items()}


def compared(results, references=("stock-rust",)):
    return report.compare(results, TITLES, references, {}, 0.95, {})


def test_a_difference_larger_than_its_spread_is_stated():
    # Seeds differ by far more than the arms do: only pairs tell.
    found = paired({0: 0.31, 1: 0.72, 2: 0.505}, {0: 0.2, 1: 0.6, 2: 0.4})
    assert found.stated
    assert found.mean == pytest.approx(0.1117, abs=1e-4)
    # Student's t with two degrees of freedom at 95 %: 4.303.
    half = 4.3027 * 0.0076376 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half), 1e-3)


def test_a_difference_inside_of_its_spread_is_not():
    assert not paired({0: 0.5, 1: 0.4, 2: 0.6}, {0: 0.4, 1: 0.5, 2: 0.5}).stated


@pytest.mark.parametrize(("second", "stated"), [(0.285, False), (0.275, True)])
def test_two_seeds_ask_for_a_mean_of_six_times_the_distance(second, stated):
    # Differences of 0.24 and second - 0.0: the bound lies at 6.35 times their distance.
    assert paired({0: 0.24, 1: second}, {0: 0.0, 1: 0.0}).stated is stated


def test_one_seed_states_nothing():
    found = paired({0: 0.9, 1: 0.5}, {0: 0.1, 2: 0.5})
    assert (found.seeds, found.stated) == (1, False)
    assert paired({0: 0.9}, {1: 0.1}) is None


def test_equal_runs_do_not_differ():
    assert not paired({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}).stated


def test_times_are_compared_as_ratios():
    found = paired({0: 0.5, 1: 5.1}, {0: 1.0, 1: 10.0}, ratio=True)
    assert found.stated
    assert found.mean == pytest.approx(math.sqrt(0.5 * 0.51) - 1)


def test_a_table_says_none_inside_of_the_spread():
    results = [
        result("prefixes", arm, seed, hit, ttft)
        for arm, seed, hit, ttft in (
            ("stock-rust", 0, 0.2, 1.0),
            ("stock-rust", 1, 0.3, 2.0),
            ("auto", 0, 0.5, 1.1),
            ("auto", 1, 0.6, 1.2),
        )
    ]
    comparison = compared(results)
    (row,) = report.difference_rows(comparison, "prefixes")
    assert row[:5] == [TITLES["auto"], TITLES["stock-rust"], "2", "+30.0", report.NONE]
    stock, auto = report.value_rows(comparison, "prefixes")
    assert stock[2] == "25.0 (20.0 to 30.0)"
    assert auto[3] == "1.15 (1.1 to 1.2)"
    assert "| +30.0 | none |" in report.markdown(comparison)


def test_two_references_are_compared_once():
    names = ["stock-rust", "stock-cap", "auto"]
    results = [result("prefixes", arm, 0, 0.5) for arm in names]
    rows = report.difference_rows(compared(results, names[:2]), "prefixes")
    pairs = [(row[0], row[1]) for row in rows]
    rust, cap, auto = (TITLES[name] for name in names)
    assert pairs == [(cap, rust), (auto, rust), (auto, cap)]


def test_failures_and_doubts_are_part_of_the_report():
    failed = {"workload": "prefixes", "arm": "auto", "seed": 1, "state": "failed"}
    python = {**result("prefixes", "stock-rust", 0, 0.5), "tree_core": "PythonTreeCore"}
    results = [
        python,
        result("prefixes", "auto", 0, 0.5, metrics_hit_rate=0.1),
        {**failed, "error": "the server did not start: out of memory"},
    ]
    comparison = report.compare(results, TITLES, [], {}, 0.95, {"patched": "no --patched-tree"})
    text = report.markdown(comparison)
    assert "patched left out: no --patched-tree" in text
    assert "prefixes, auto, seed 1 FAILED: the server did not start: out of memory" in text
    assert "stock-rust ran with PythonTreeCore, not the Rust core" in text
    assert "50.00% by the answers, 10.00% by the metrics" in text


def test_every_difference_is_in_the_json_with_its_interval():
    results = [result("prefixes", arm, 0, 0.5) for arm in ("stock-rust", "auto")]
    written = report.as_json(compared(results))
    figures = {entry["figure"] for entry in written["differences"]}
    assert figures == {figure.key for figure in report.FIGURES}
    entry = written["differences"][0]
    assert (entry["stated"], entry["low"], entry["seeds"]) == (False, None, 1)

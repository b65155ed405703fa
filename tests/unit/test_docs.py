"""The documentation says what the code does."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from sglang_hybrid.adapter import metric_table, support
from sglang_hybrid.adapter.short_hits import Reason
from sglang_hybrid.config import markdown_table

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/design.md",
    "docs/exactness.md",
    "docs/operations.md",
    "docs/support.md",
    "docs/reports.md",
    "docs/reliability.md",
    "docs/security.md",
    "docs/exact-checkpoints.md",
    "docs/benchmarks.md",
    "docs/traces.md",
    "docs/replay.md",
    "docs/simulator.md",
    "docs/paper.md",
    "docs/policy-research.md",
    "docs/tuning-results.md",
]


TABLES = [
    ("operations", "keys", markdown_table),
    ("operations", "metrics", metric_table.markdown_table),
    ("support", "features", support.markdown_table),
]


@pytest.mark.parametrize(("page", "what", "table"), TABLES)
def test_generated_tables_are_current(page, what, table):
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- {what}:")
    found = rest.partition("-->\n")[2].partition(f"<!-- end of {what} -->")[0]
    assert found == table(), f"docs/{page}.md: put markdown_table() between the markers"


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    for piece in path.read_text(encoding="utf-8").split("](")[1:]:
        target = piece.split(")")[0].split("#")[0]
        if target and "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_option_and_figure_of_replay_is_explained():
    pytest.importorskip("numba")
    from sglang_hybrid.cli.replay import add_arguments
    from sglang_hybrid.sim.results import ReplayResult

    text = (ROOT / "docs/replay.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = [action.option_strings[-1] for action in parser._actions]
    assert [option for option in options if f"`{option}" not in text] == ["--help"]
    figures = [field.name for field in dataclasses.fields(ReplayResult)]
    assert [name for name in figures if f"`{name}`" not in text] == []


def test_every_reason_of_a_short_hit_is_explained():
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert [reason for reason in Reason if f"| `{reason}` |" not in text] == []


def test_every_counter_is_explained():
    counters = pytest.importorskip("sglang_hybrid.adapter.counters").Counters().as_dict()
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert [name for name in counters if f"`{name}`" not in text] == []


def test_tests_of_public_reports_exist():
    text = (ROOT / "docs/reports.md").read_text(encoding="utf-8")
    file, missing = "", []
    for named, name in re.findall(r"`([\w/]*\.py)?::(\w+)`", text):
        file = named or file
        path = ROOT / (file if "/" in file else f"tests/reports/{file}")
        if f"def {name}(" not in path.read_text(encoding="utf-8"):
            missing.append(f"{path}::{name}")
    assert not missing and text.count("::test_") > 30

"""The documentation says what the code does."""

from pathlib import Path

import pytest

from sglang_hybrid.config import markdown_table

ROOT = Path(__file__).parents[2]
START, END = "<!-- keys:", "<!-- end of keys -->"
PAGES = [
    "README.md",
    "docs/design.md",
    "docs/operations.md",
    "docs/benchmarks.md",
    "docs/traces.md",
    "docs/paper.md",
]


def test_the_table_of_keys_is_current():
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(START)
    table = rest.partition("-->\n")[2].partition(END)[0]
    assert table == markdown_table(), "docs/operations.md: put markdown_table() between the markers"


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    for piece in path.read_text(encoding="utf-8").split("](")[1:]:
        target = piece.split(")")[0].split("#")[0]
        if target and "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_counter_is_explained():
    counters = pytest.importorskip("sglang_hybrid.adapter.counters").Counters().as_dict()
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert [name for name in counters if f"`{name}`" not in text] == []

"""Tables of Markdown, and pages that hold generated ones between markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def change(ratio: float, digits: int = 1) -> str:
    """A ratio as a gain: 1.25 is +25 %."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def gigabytes(size: float) -> str:
    """In 10^9 bytes, three significant digits."""
    return f"{float(f'{size / 1e9:.3g}'):g} GB"


def fill(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises:
        ValueError: the page lacks these markers.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    filled, count = pattern.subn(lambda _: f"{begin}\n{text}\n{end}", page.read_text())
    if count != 1:
        raise ValueError(f"{page}: {count} places between {begin} and {end}; 1 is needed")
    page.write_text(filled)

"""What of SGLang is served together with this cache: one table, a row per feature.

A row says that a feature was tested here, or is accepted because the cache does not see it
(and why), or is refused. `reviewed.INDEPENDENT` names the fields of `ServerArgs` that touch
no prefix cache; every field of the supported SGLang is there or in a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_hybrid.adapter.rules import flag_of
from sglang_hybrid.adapter.support.features import SERVED
from sglang_hybrid.adapter.support.refusals import REFUSED
from sglang_hybrid.adapter.support.reviewed import INDEPENDENT
from sglang_hybrid.adapter.support.row import Row, Status

__all__ = ["ROWS", "Row", "Status", "fields_of", "markdown_table", "unreviewed"]

ROWS: tuple[Row, ...] = (*SERVED, *REFUSED)


def fields_of(rows: Iterable[Row] = ROWS) -> set[str]:
    """Fields of `ServerArgs` that the rows are about."""
    return {field for row in rows for field in row.fields}


def unreviewed(fields: Iterable[str]) -> list[str]:
    """Those of ``fields`` of an installed `ServerArgs` that nobody has looked at."""
    known = fields_of() | {field for names in INDEPENDENT.values() for field in names}
    return sorted(set(fields) - known)


def markdown_table() -> str:
    """The table of features, as the documentation shows it."""
    lines = [
        "| Feature | Flags | Status | What holds, or why not | Tests |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS:
        flags = ", ".join(f"`{flag_of(field)}`" for field in row.fields if field[0] != "_") or "-"
        files = dict.fromkeys(test.partition("::")[0] for test in row.tests)
        tests = ", ".join(f"`{file}`" for file in files) or "-"
        lines.append(f"| {row.feature} | {flags} | {row.status} | {row.why} | {tests} |")
    return "\n".join(lines) + "\n"

"""Reports of a shadow process that are none never reach the scheduler."""

import dataclasses
import pickle

import pytest

from sglang_hybrid.core.hit_density import new_table
from sglang_hybrid.shadow.messages import Report, table_to_bytes

GOOD = Report(0, 0, (1.0, 2.0), 3.0, (1, 2), {1: table_to_bytes(new_table())})


def test_a_report_arrives():
    assert Report.from_bytes(GOOD.to_bytes()) == GOOD


@pytest.mark.parametrize(
    "changes",
    [
        {"saved": None},
        {"saved": ("x",)},
        {"saved": 5},
        {"hits": (None,)},
        {"generation": "0"},
        {"realised": None},
        {"tables": None},
        {"tables": {1: b"short"}},
        {"tables": {"1": table_to_bytes(new_table())}},
        {"tables": {1: None}},
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_a_report_with_a_wrong_field_is_none(changes):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        Report.from_bytes(dataclasses.replace(GOOD, **changes).to_bytes())


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(5), pickle.dumps([GOOD])])
def test_bytes_that_are_no_report(data):
    with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
        Report.from_bytes(data)

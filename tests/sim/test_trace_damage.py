"""Whatever is wrong with an entry, reading ends in a trace or in an error that says so."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hybrid.sim.traces import TraceReport, load_trace

from .trace_files import BY_FORMAT

JUNK = st.sampled_from(
    [None, True, -1, 0, 1.5, 2**31, 2**63, 2**64 - 1, 1e300, "", "x", [], {}, [[]], [None], [-1]]
)


def places(value, path=()):
    """Paths to every part of a JSON value."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from places(part, (*path, key))


def damaged(value, path, junk):
    """A copy of ``value`` with ``junk`` at ``path``."""
    if not path:
        return junk
    copy = json.loads(json.dumps(value))
    part = copy
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = junk
    return copy


@pytest.mark.parametrize("name", BY_FORMAT)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damage_is_reported(name, data):
    entries = list(BY_FORMAT[name])
    where = data.draw(st.integers(0, len(entries) - 1))
    path = data.draw(st.sampled_from(list(places(entries[where]))))
    entries[where] = damaged(entries[where], path, data.draw(JUNK))
    report = TraceReport()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace")
        file.write_text("\n".join(map(json.dumps, entries)))
        try:
            trace = load_trace(file, format=name, report=report)
        except ValueError as error:
            assert str(error)
            return
    assert report.entries == len(entries)
    for request in range(len(trace)):
        tokens = int(trace.input_len[request] + trace.output_len[request])
        assert len(trace.sequence(request)) == -(-tokens // trace.tokens_per_symbol)

"""The newest records are held within bounds, and can be written as a trace."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from sglang_hybrid.shadow.ring import Ring
from sglang_hybrid.sim.traces import load_trace

from .conversations import records, split

SALT = bytes(range(16))


@pytest.mark.parametrize("limits", [(10, 10_000), (1000, 100), (37, 300), (1, 1)])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_the_newest_records_that_fit_are_held(limits, size):
    ring = Ring(*limits)
    window = records(1, 120)
    held = 0
    for part in split(window, size):
        held += len(part) - ring.append(part)
        assert held == len(ring)
        assert len(ring) <= max(limits[0], len(part))
        assert ring.num_pages <= max(limits[1], len(part.pages))
    newest = window.part(len(window) - len(ring), len(window))
    assert ring.window().pages.tolist() == newest.pages.tolist()
    assert ring.window().input_len.tolist() == newest.input_len.tolist()
    if len(ring) < min(limits[0], len(window)) and len(ring) > size:
        one_more = window.part(len(window) - len(ring) - 1, len(window))
        assert len(one_more.pages) > limits[1]


def test_an_empty_ring_has_no_window():
    ring = Ring()
    assert ring.window() is None
    ring.append(records(1, 5))
    ring.clear()
    assert (ring.window(), len(ring), ring.num_pages) == (None, 0, 0)


def test_pages_of_another_size_are_refused():
    ring = Ring()
    ring.append(records(1, 5))
    with pytest.raises(ValueError, match="pages of 32 tokens after pages of 64"):
        ring.append(type(w := records(1, 1))(**{**vars(w), "page": 32}))
    assert len(ring) == 5


@pytest.mark.parametrize("limits", [(0, 5), (5, 0)])
def test_limits_are_checked(limits):
    with pytest.raises(ValueError, match="= 0 is not allowed"):
        Ring(*limits)


def write(ring, path: Path, salt=SALT):
    with path.open("w") as file:
        return ring.to_jsonl(file, salt)


def test_the_records_can_be_replayed(tmp_path):
    ring, window = Ring(), records(4, 60)
    for part in split(window, 7):
        ring.append(part)
    assert write(ring, tmp_path / "record.jsonl") == 60
    trace = load_trace(tmp_path / "record.jsonl", strict=True)
    assert trace.tokens_per_symbol == 64
    assert trace.input_len.tolist() == window.input_len.tolist()
    assert trace.output_len.tolist() == window.output_len.tolist()
    assert trace.system_len.tolist() == window.system_len.tolist()
    # Two symbols are the same if namespace and hash are.
    symbols = {}
    for i in range(60):
        own = window.pages[window.offsets[i] : window.offsets[i + 1]].tolist()
        for page, symbol in zip(own, trace.sequence(i).tolist(), strict=False):
            key = int(window.namespace[i]), page
            assert symbols.setdefault(key, symbol) == symbol
    assert len(set(symbols.values())) == len(symbols)


def test_a_file_tells_neither_hashes_nor_namespaces(tmp_path):
    ring, window = Ring(), records(4, 30)
    ring.append(window)
    texts = []
    for salt in (SALT, SALT[::-1]):
        file = io.StringIO()
        ring.to_jsonl(file, salt)
        texts.append(file.getvalue())
    tokens = [
        {value for line in text.splitlines() for value in json.loads(line)["hashes"]}
        for text in texts
    ]
    assert tokens[0].isdisjoint(tokens[1])
    for value in (*window.pages.tolist(), *np.unique(window.namespace).tolist()):
        assert f'"{value:x}"' not in texts[0] and f'"{value:016x}"' not in texts[0]


def test_two_namespaces_share_no_hashes_in_a_file():
    window = records(4, 1)
    ring = Ring()
    for namespace in (1, 2):
        own = np.array([namespace], np.uint64)
        ring.append(type(window)(**{**vars(window), "namespace": own}))
    file = io.StringIO()
    ring.to_jsonl(file, SALT)
    one, other = (set(json.loads(line)["hashes"]) for line in file.getvalue().splitlines())
    assert one and one.isdisjoint(other)


def test_a_short_salt_is_refused():
    with pytest.raises(ValueError, match="salt of 4 bytes"):
        Ring().to_jsonl(io.StringIO(), b"salt")

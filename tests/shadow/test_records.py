"""Windows survive the journey as they are, and nothing else is taken for one."""

import struct
import zlib
from dataclasses import fields

import numpy as np
import pytest

from sglang_hybrid.shadow.records import DamagedWindowError, Window, WindowBuilder

from .conversations import records, split


def same(one, other):
    for field in fields(Window):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    return True


@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_window_travels_as_bytes(count):
    window = records(1, count)
    found = Window.from_bytes(window.to_bytes())
    assert same(found, window)
    assert found.pages.dtype == found.namespace.dtype == np.uint64


def test_a_record_takes_48_bytes_and_8_per_page():
    window = records(1, 50)
    assert len(window.to_bytes()) == 40 + 48 * 50 + 8 + 8 * len(window.pages)


def test_parts_joined_are_the_whole():
    window = records(2, 50)
    assert same(Window.joined(split(window, 7)), window)
    part = split(window, 7)[3]
    assert part.first == 21
    assert same(Window.from_bytes(part.to_bytes()), part)


def test_the_builder_counts_requests_and_starts_anew():
    builder = WindowBuilder()
    for _ in range(2):
        builder.add(100, 30, np.array([5, 6], np.uint64), hit=64, system_len=10, namespace=2**63)
    window = builder.take()
    assert (window.first, len(window), len(builder)) == (0, 2, 0)
    assert window.offsets.tolist() == [0, 2, 4]
    assert window.namespace.tolist() == [2**63] * 2
    builder.add(1, 0, np.empty(0, np.uint64))
    assert (builder.first, builder.take().first) == (2, 2)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"input_len": 0}, "request 1 .* input_len = 0 is not allowed"),
        ({"output_len": -1}, "output_len = -1"),
        ({"hit": 101}, "hit = 101 is not allowed; allowed: 0 to input_len"),
        ({"system_len": 101}, "system_len = 101"),
        ({"system_len": -2}, "system_len = -2"),
        ({"output_len": 20}, "request 1 .* 2 pages of 64 tokens for 120 tokens"),
    ],
)
def test_an_impossible_record_is_refused_and_the_next_window_is_not_affected(record, message):
    builder = WindowBuilder()
    pages = np.array([1, 2], np.uint64)
    builder.add(100, 30, pages)
    builder.add(**{"input_len": 100, "output_len": 30, "pages": pages, **record})
    with pytest.raises(ValueError, match=message):
        builder.take()
    builder.add(100, 30, pages)
    assert builder.take().first == 2


def test_every_damaged_byte_is_noticed():
    data = records(3, 5).to_bytes()
    for at in range(32):  # the header without its padding
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(DamagedWindowError):
            Window.from_bytes(bytes(broken))
    for at in range(40, len(data), 13):
        broken = bytearray(data)
        broken[at] ^= 128
        with pytest.raises(DamagedWindowError, match="checksum"):
            Window.from_bytes(bytes(broken))


def test_every_shortened_message_is_noticed():
    data = records(3, 5).to_bytes()
    for length in (*range(0, len(data), 11), len(data) - 1):
        with pytest.raises(DamagedWindowError):
            Window.from_bytes(data[:length])
    with pytest.raises(DamagedWindowError):
        Window.from_bytes(data + b"\0")


def test_another_version_is_named():
    data = bytearray(records(3, 5).to_bytes())
    struct.pack_into("<H", data, 4, 2)
    with pytest.raises(DamagedWindowError, match="version 2; known is 1"):
        Window.from_bytes(bytes(data))


def test_a_message_that_says_what_cannot_be_is_damaged():
    data = bytearray(records(3, 5).to_bytes())
    struct.pack_into("<q", data, 40, -5)  # input_len of the first request
    struct.pack_into("<I", data, 28, zlib.crc32(data[40:], zlib.crc32(data[:28])))
    with pytest.raises(DamagedWindowError, match="input_len = -5"):
        Window.from_bytes(bytes(data))

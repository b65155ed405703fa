"""Prefill times from a roofline and from measurements."""

import numpy as np
import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.prefill_time import DEVICES, PrefillTime, parse_prefill_time

COSTS = ModelCosts(kv_bytes_per_token=1, state_bytes=1, flops_linear=10, flops_quadratic=0.5)


def test_roofline_is_flops_over_reached_flops():
    time = PrefillTime.roofline(COSTS, peak_flops=1000, utilisation=0.5, overhead_seconds=0.25)
    input_len, hit = np.array([100, 5000, 70_000]), np.array([0, 4999, 35_001])
    flops = [COSTS.saved_flops(i, h) for i, h in zip(input_len, hit, strict=True)]
    expected = 0.25 + np.array(flops) / 500
    assert time.seconds(input_len, hit) == pytest.approx(expected, rel=2e-2)
    nothing_cached = time.seconds(input_len, 0)
    full = [0.25 + COSTS.prefill_flops(i) / 500 for i in input_len]
    assert nothing_cached == pytest.approx(full, rel=5e-4)


def test_a_hit_never_makes_a_prefill_slower():
    time = parse_prefill_time("roofline:h100", load_model("paper-7b").costs)
    seconds = time.seconds(32_768, np.arange(0, 32_768, 100))
    assert (np.diff(seconds) <= 0).all()
    assert seconds[0] > 10 * seconds[-1]


def test_weights_are_read_at_least_once():
    time = PrefillTime.roofline(
        COSTS, peak_flops=1000, overhead_seconds=0.5, weight_bytes=300, bandwidth=100
    )
    assert time.floor_seconds == 3
    assert time.seconds(1000, 999) == pytest.approx(3.5)
    assert time.seconds(1000, 0) > 100
    # One weight of two bytes for every two FLOPs per token.
    assert PrefillTime.roofline(COSTS, peak_flops=1, bandwidth=10).floor_seconds == 1


def test_table_and_scalars_are_all_there_is():
    time = parse_prefill_time("roofline:a100:utilisation=0.6", load_model("paper-7b").costs)
    tokens, cumulative = time.table()
    assert tokens[0] == cumulative[0] == 0
    expected = np.interp(9000, tokens, cumulative) - np.interp(1000, tokens, cumulative)
    assert time.seconds(9000, 1000) == pytest.approx(time.overhead_seconds + expected)


def test_lengths_beyond_the_table_go_on_with_its_last_slope():
    time = PrefillTime(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 3.0]))
    assert time.seconds([15, 30, 40], [0, 0, 20]) == pytest.approx([2, 5, 4])


def measured(tmp_path, text):
    path = tmp_path / "h100.csv"
    path.write_text(text)
    return path


def test_measured_prefills_give_back_what_was_measured(tmp_path):
    path = measured(tmp_path, "tokens,seconds\n1000, 0.12\n2000,0.22\n\n4000,0.52\n")
    time = parse_prefill_time(f"csv:{path}", COSTS)
    assert time.overhead_seconds == pytest.approx(0.02)  # the line through the first two
    assert time.seconds([1000, 2000, 3000, 4000], 0) == pytest.approx([0.12, 0.22, 0.37, 0.52])
    assert time.seconds(4000, 2000) == pytest.approx(0.02 + 0.3)
    assert time.seconds(6000, 0) == pytest.approx(0.82)


def test_measurements_without_overhead(tmp_path):
    path = measured(tmp_path, "tokens,seconds\n10,1\n20,3\n")
    time = PrefillTime.from_csv(path)
    assert time.overhead_seconds == 0
    assert time.seconds([10, 20], 0) == pytest.approx([1, 3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: header '' is not allowed"),
        ("tokens,ms\n1,2\n", "line 1: header 'tokens,ms'"),
        ("tokens,seconds\n10,1\n", "1 lines of measurements"),
        ("tokens,seconds\n10,1\n20,x\n", "line 3: '20,x' is not allowed; allowed: two numbers"),
        ("tokens,seconds\n10,1\n20,2,3\n", "line 3: '20,2,3'"),
        ("tokens,seconds\n10,1\n10,2\n", "line 3: tokens 10 is not allowed; allowed: more than 10"),
        ("tokens,seconds\n10,1\n20,0.5\n", "line 3: seconds 0.5 is not allowed"),
        ("tokens,seconds\n10,nan\n20,1\n", "line 2: seconds nan"),
        ("tokens,seconds\n0,1\n20,1\n", "line 2: tokens 0"),
    ],
)
def test_bad_measurements_are_named(tmp_path, text, message):
    with pytest.raises(ValueError) as error:
        PrefillTime.from_csv(measured(tmp_path, text))
    assert message in str(error.value)
    assert "h100.csv" in str(error.value)


def test_flag_takes_devices_and_plain_flops():
    costs = load_model("paper-7b").costs
    long, cached = 30_000, 0
    h100 = parse_prefill_time("roofline:h100", costs).seconds(long, cached)
    faster = parse_prefill_time("roofline:h100:utilisation=0.8", costs).seconds(long, cached)
    assert faster < h100 < parse_prefill_time("roofline:l4", costs).seconds(long, cached)
    plain = parse_prefill_time("roofline:312e12:overhead=0", costs)
    assert plain.floor_seconds == plain.overhead_seconds == 0
    a100 = parse_prefill_time("roofline:a100:overhead=0", costs)
    assert plain.seconds(long, cached) == a100.seconds(long, cached)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roofline", "allowed: roofline:DEVICE"),
        ("fast:h100", "allowed: roofline:DEVICE"),
        ("roofline:h10", "did you mean 'h100'?"),
        ("roofline:-3", "peak_flops -3.0 is not allowed"),
        ("roofline:h100:speed=3", "allowed keys: utilisation, overhead"),
        ("roofline:h100:utilisation=x", "utilisation = 'x' is not allowed"),
        ("roofline:h100:utilisation=1.5", "utilisation 1.5 is not allowed"),
        ("roofline:h100:overhead=-1", "overhead_seconds -1.0 is not allowed"),
    ],
)
def test_bad_flags_are_named(text, message):
    with pytest.raises(ValueError) as error:
        parse_prefill_time(text, COSTS)
    assert message in str(error.value)
    assert text in str(error.value)


def test_every_device_prefills():
    for name in DEVICES:
        assert (
            parse_prefill_time(f"roofline:{name}", load_model("paper-7b").costs).seconds(100, 0) > 0
        )

"""Whatever is given as `--cache-config`: a configuration within its bounds, or one short line."""

import json
import math

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.config import CacheConfig, ConfigError

KEYS = list(CacheConfig.model_fields)
LONGEST_MESSAGE = 700

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, -(10**4000), 2**31, 2**31 - 1, 10**6, 0, -1]),
    st.floats(),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cc"]), max_size=5),
    st.sampled_from(["auto", "lru", "x" * 10**5, "\ud800", "\0", "\u2028", "true"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.binary(max_size=3), st.just(object())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def check(source):
    """A valid configuration, or None where ``source`` was refused in the right way."""
    try:
        config = CacheConfig.parse(source)
    except ConfigError as error:
        message = str(error)
        assert message.startswith("--cache-config: ") and "allowed" in message
        assert message.isprintable() and len(message) <= LONGEST_MESSAGE
        return None
    json.dumps(config.effective(), allow_nan=False)
    assert config.alpha is None or (0 <= config.alpha <= 10**6 and type(config.alpha) is float)
    for key, least, most in (
        ("min_gain_tokens", 1, 2**31 - 1),
        ("tuner_window", 10, 100_000),
        ("bootstrap_factor", 5, 15),
        ("record_requests", 0, 10**6),
    ):
        assert type(getattr(config, key)) is int and least <= getattr(config, key) <= most
    assert math.isfinite(config.bucket_width) and config.bucket_width >= 0
    for key in ("ghost_forks", "system_end", "strict"):
        assert type(getattr(config, key)) is bool
    return config


@examples(100)
@given(st.dictionaries(st.sampled_from(KEYS) | TEXTS | st.integers() | st.none(), VALUES))
def test_any_mapping(values):
    check(values)


@examples(100)
@given(VALUES)
def test_any_value_of_a_known_key_names_it(value):
    for key in KEYS:
        try:
            check({key: value})
            CacheConfig.parse({key: value})
        except ConfigError as error:
            assert key in str(error)


@examples(100)
@given(
    st.text(max_size=40)
    | st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape"))
)
def test_any_text(text):
    check(text)


@examples(100)
@given(st.data())
def test_damaged_json(data):
    good = json.dumps({"policy": "marconi", "alpha": 0.5, "min_gain_tokens": 64, "strict": True})
    at = data.draw(st.integers(0, len(good)))
    junk = data.draw(
        st.text(max_size=3) | st.sampled_from(["9" * 5000, "[" * 9000, "NaN", "-", '"'])
    )
    end = data.draw(st.integers(at, min(len(good), at + 5)))
    check(good[:at] + junk + good[end:])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"policy": ' + "[" * 900 + "]" * 900 + "}",
        '{"alpha": NaN}',
        '{"alpha": -Infinity}',
        '{"alpha": 1e999, "policy": "utility"}',
        '{"min_gain_tokens": %s}' % ("9" * 4000),
        '{"min_gain_tokens": %s}' % ("9" * 4000 + "9" * 4000),
        '{"strict": 1}',
        '{"min_gain_tokens": true}',
        '{"policy": "auto", "policy": "lru"}',
        '{"%s": 1}' % ("k" * 10**6),
        '{"policy": "%s"}' % ("k" * 10**6),
        '{"\\ud800": "\\u0000"}',
        '\ufeff{"policy": "lru"}',
        "\0",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_refused(text):
    assert check(text) is None


def test_a_key_of_many_digits():
    assert check({10**5000: 1}) is None

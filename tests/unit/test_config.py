"""`--cache-config`: what is accepted, and what a wrong value is told."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hybrid.config import CacheConfig, ConfigError, help_text, markdown_table

KEYS = list(CacheConfig.model_fields)
HUGE = "9" * 400


def message_of(source):
    with pytest.raises(ConfigError) as raised:
        CacheConfig.parse(source)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith("--cache-config: ")
    return message


def test_defaults():
    assert CacheConfig.parse("{}").effective() == {
        "policy": "auto",
        "alpha": None,
        "min_gain_tokens": 128,
        "ghost_forks": True,
        "system_end": True,
        "branch_checkpoint": "exact",
        "prompt_end": "auto",
        "chunk_boundary": "first_victims",
        "bucket_width": 0.25,
        "tuner": "shadows",
        "tuner_window": 100,
        "bootstrap_factor": 5,
        "objective": "flops",
        "record_requests": 4096,
        "strict": False,
    }


@pytest.mark.parametrize(
    ("text", "alpha"),
    [
        ('{"policy": "utility"}', 0.5),
        ("{}", 0.0),
        ('{"policy": "density"}', 0.0),
        ('{"policy": "marconi"}', 0.0),
        ('{"policy": "marconi", "alpha": null}', 0.0),
        ('{"policy": "marconi", "alpha": 0}', 0.0),
        ('{"policy": "utility", "alpha": 4}', 4.0),
        ('{"policy": "lru"}', 0.0),
        ('{"policy": "lru", "alpha": 0}', 0.0),
    ],
)
def test_alpha_starts_as_the_policy_says(text, alpha):
    assert CacheConfig.parse(text).effective_alpha == alpha


@pytest.mark.parametrize(
    ("text", "tuned", "start"),
    [
        ("{}", True, "density"),
        ('{"policy": "marconi"}', True, "marconi"),
        ('{"policy": "marconi", "tuner": "bootstrap"}', True, "marconi"),
        ('{"policy": "marconi", "alpha": 1}', False, "marconi"),
        ('{"policy": "utility"}', False, "utility"),
        ('{"policy": "density"}', False, "density"),
        ('{"policy": "lru"}', False, "lru"),
    ],
)
def test_what_is_tuned(text, tuned, start):
    config = CacheConfig.parse(text)
    assert (config.is_tuned, config.start_policy) == (tuned, start)
    assert (config.effective()["alpha"] is None) == (tuned or start == "density")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("policy", '"lfu"', '"auto", "utility", "marconi", "lru"'),
        ("policy", "1", '"auto", "utility", "marconi", "lru"'),
        ("policy", '["lru"]', '"auto", "utility", "marconi", "lru"'),
        ("alpha", "-0.5", "a number from 0 to 1e+06"),
        ("alpha", "NaN", "a number from 0 to 1e+06"),
        ("alpha", "Infinity", "a number from 0 to 1e+06"),
        ("alpha", "true", "a number from 0 to 1e+06"),
        ("alpha", '"1"', "a number from 0 to 1e+06"),
        ("min_gain_tokens", "0", "an integer from 1"),
        ("min_gain_tokens", "12.5", "an integer from 1"),
        ("min_gain_tokens", "true", "an integer from 1"),
        ("min_gain_tokens", "null", "an integer from 1"),
        ("min_gain_tokens", "2147483648", "an integer from 1 to 2147483647"),
        ("prompt_end", '"sometimes"', '"auto", "always", "never"'),
        ("chunk_boundary", '"always"', '"first_victims", "never"'),
        ("bucket_width", "-1", "a finite number >= 0"),
        ("bucket_width", "null", "a finite number >= 0"),
        ("ghost_forks", "8", "true, false"),
        ("system_end", '"auto"', "true, false"),
        ("tuner", "{}", '"shadows", "bootstrap"'),
        ("tuner_window", "9", "an integer from 10"),
        ("bootstrap_factor", "16", "an integer from 5 to 15"),
        ("objective", '"ttft"', '"flops", "tokens"'),
        ("record_requests", "-1", "an integer from 0"),
        ("strict", "1", "true, false"),
        ("strict", '"true"', "true, false"),
    ],
)
def test_wrong_value_names_key_value_and_what_is_allowed(key, value, allowed):
    message = message_of(f'{{"{key}": {value}}}')
    assert f"{key} = {value} is not allowed" in message
    assert f"allowed: {allowed}" in message
    assert "correct it" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"polcy": "lru"}', ['unknown key "polcy"', '"lru"', 'did you mean "policy"?']),
        ('{"capacity": 3}', ['unknown key "capacity"', "3", "min_gain_tokens", "remove it"]),
        ('{"alpha": 1}', ["alpha = 1", 'policy "auto"', "remove alpha"]),
        ('{"policy": "density", "alpha": 0}', ["alpha = 0", 'policy "density"']),
        ('{"tuner": "bootstrap"}', ['tuner = "bootstrap"', 'policy "auto"', "remove tuner"]),
        (
            '{"policy": "marconi", "alpha": 1, "tuner": "bootstrap"}',
            ['tuner = "bootstrap"', "alpha 1", "remove tuner"],
        ),
        ('{"policy": "lru", "alpha": 1}', ["alpha = 1", 'policy "lru"', "remove alpha"]),
        ('{"alpha": 1, "alpha": 2}', ['"alpha" is given twice', "1", "2"]),
        ("[]", ["[] is not a JSON object"]),
        ("null", ["null is not a JSON object"]),
        ('"lru"', ['"lru" is not a JSON object']),
        ("lru", ['"lru" is not valid JSON']),
        ("", ['"" is not valid JSON']),
        ("{'policy': 'lru'}", ["is not valid JSON", "check quotes and commas"]),
        ("[" * 100_000, ["nested too deeply"]),
        ('{"alpha":' * 100_000, ["nested too deeply"]),
        (f'{{"alpha": {HUGE}}}', ["alpha = 9999", "a number from 0 to 1e+06"]),
        (f'{{"min_gain_tokens": {HUGE}}}', ["min_gain_tokens = 9999", "an integer from 1"]),
        (f'{{"alpha": {"9" * 5000}}}', ["is not valid JSON"]),
        ('{"policy": "a\\nb\\u0007"}', ['policy = "a\\nb\\u0007"']),
        ('{"\\ud800": 1}', ['unknown key "\\ud800"']),
        ({1: 2}, ["unknown key 1"]),
        ({"alpha": object()}, ["alpha = a Python object"]),
        (5, ["5 is not a JSON object"]),
    ],
)
def test_hostile_or_mistaken_input(text, parts):
    message = message_of(text)
    for part in parts:
        assert part in message


def test_mapping_text_and_config_are_the_same():
    config = CacheConfig.parse('{"policy": "marconi", "alpha": 2}')
    assert CacheConfig.parse({"policy": "marconi", "alpha": 2}) == config
    assert CacheConfig.parse(config) is config
    assert CacheConfig.parse(config.model_dump()) == config
    assert CacheConfig.parse(json.dumps(config.effective())) == config


def test_config_cannot_be_changed():
    with pytest.raises(ValueError):
        CacheConfig.parse("{}").policy = "lru"


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["utility", "marconi", "lru", "auto", "always", "never", "first_victims"])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_MAPPINGS = st.dictionaries(st.sampled_from([*KEYS, "tuner"]) | st.text(), _VALUES, max_size=5)


def _parse_or_explain(source):
    """Anything but a usable configuration or one line is a defect."""
    try:
        config = CacheConfig.parse(source)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert "; " in str(error)
        return
    assert config.policy in ("auto", "utility", "marconi", "lru", "density")
    assert math.isfinite(config.effective_alpha)
    assert config.effective_alpha >= 0
    assert math.isfinite(config.bucket_width)
    assert type(config.min_gain_tokens) is int
    assert config.min_gain_tokens >= 1
    assert type(config.strict) is bool


@given(_MAPPINGS)
def test_any_mapping_is_a_config_or_one_line(values):
    _parse_or_explain(values)


@given(st.text() | _VALUES.map(json.dumps) | _MAPPINGS.map(json.dumps))
def test_any_text_is_a_config_or_one_line(text):
    _parse_or_explain(text)


def test_documentation_has_every_key():
    table = markdown_table()
    assert len(table.splitlines()) == len(KEYS) + 2
    for key in KEYS:
        assert f"| `{key}` |" in table
        assert key in help_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "auto, at first density"),
        ('{"policy": "density"}', "density"),
        ('{"policy": "lru"}', "lru"),
        ('{"policy": "marconi", "alpha": 2}', "marconi, alpha 2"),
        ('{"policy": "utility", "alpha": 0.25}', "utility, alpha 0.25"),
    ],
)
def test_the_policy_in_words_names_an_alpha_only_where_there_is_one(text, words):
    assert CacheConfig.parse(text).policy_in_words() == words

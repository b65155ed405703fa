"""`recommend`: what the server can do, and better than its defaults where there is more to get."""

import json

import pytest

from sglang_hybrid.config import CacheConfig
from sglang_hybrid.sim import load_trace, recommend, sweep
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.candidates import admissions, policies
from sglang_hybrid.sim.policy_spec import parse_policy

MODEL = "nemotron-h-8b"
# Short sequences: states are what memory is needed for.
SHORT = "gen:shared-prefix?groups=20&prompts=20&system=512&question=64&output=32"


@pytest.fixture(scope="module")
def short():
    return load_trace(SHORT)


@pytest.fixture(scope="module")
def advice(short):
    return recommend(short, MODEL, "4GiB", workers=1)


def test_ratio_beats_the_default_where_states_are_short(short, advice):
    assert advice.ratio > 0.9
    (default,) = sweep(
        short,
        MODEL,
        policies=[advice.policy],
        admissions=[advice.admission],
        budgets=["4GiB"],
        pools_ratio=0.9,
    )
    half = advice.judged_from
    at_default = default.hits[half:].sum() / short.input_len[half:].sum()
    assert advice.expected.token_hit_rate > at_default + 0.02
    assert advice.expected.token_hit_rate > advice.stock.token_hit_rate + 0.05
    assert advice.expected.ttft.p50 <= advice.stock.ttft.p50


def test_figures_are_those_of_the_second_half(short, advice):
    (row,) = sweep(
        short,
        MODEL,
        policies=["sglang"],
        admissions=["stock"],
        budgets=["4GiB"],
        pools_ratio=0.9,
    )
    assert (advice.requests, advice.judged_from) == (len(short), len(short) // 2)
    late = row.hits[advice.judged_from :].sum() / short.input_len[advice.judged_from :].sum()
    assert advice.stock.token_hit_rate == late
    assert advice.stock.requests == advice.requests - advice.judged_from


def test_memory_is_divided_as_the_server_would(advice):
    assert advice.memory_bytes == 4 * 2**30
    assert advice.flags[0] == "--cache hybrid-marconi"
    assert f"--mamba-full-memory-ratio {advice.ratio:g}" in advice.flags
    assert [other.label for other in advice.others] == ["stock SGLang, best ratio"]
    json.dumps(advice.to_dict(), allow_nan=False)


def test_few_requests_are_all_judged():
    trace = load_trace(SHORT, limit=50)
    advice = recommend(trace, MODEL, "4GiB", workers=1)
    assert advice.judged_from == 0
    assert advice.expected.requests == 50


def test_defaults_are_kept_where_nothing_is_to_be_gained():
    trace = load_trace("gen:shared-prefix?groups=2&prompts=20&system=512&question=64&output=32")
    advice = recommend(trace, MODEL, "40GiB", workers=1)
    assert advice.config == {}
    assert advice.ratio == 0.9


def test_the_server_can_do_what_is_tried():
    for policy, config in policies():
        parsed = CacheConfig.parse(json.dumps(config))
        assert parsed.is_tuned == (policy == "auto")
        if policy != "auto":
            spec = parse_policy(policy)
            assert parsed.policy == spec.kind
            assert spec.kind in ("lru", "density") or parsed.effective_alpha == spec.alpha
    for config, text in admissions():
        parsed, admission = CacheConfig.parse(config), parse_admission(text)
        assert parsed.min_gain_tokens == admission.min_gain_tokens
        assert parsed.ghost_forks == (admission.ghost_forks == 1)
        assert (parsed.prompt_end == "never") == (admission.prompt_end == 0)
        assert (parsed.chunk_boundary == "never") == (admission.chunk_tokens == 0)
        assert (parsed.prompt_end == "always") == (not admission.first_victims)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("1MB", "memory of 1000000 bytes is not allowed.*give more memory"),
        ("lots", "'lots' is not allowed"),
    ],
)
def test_what_is_refused(short, memory, message):
    with pytest.raises(ValueError, match=message):
        recommend(short, MODEL, memory)

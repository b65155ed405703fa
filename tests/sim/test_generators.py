"""Generators: shape, determinism, what they refuse."""

import numpy as np
import pytest

from sglang_hybrid.sim.traces import article_a, article_b, load_trace, shared_prefix


def prefixes(trace):
    """Prefix length and uses, by the request that used a prefix first."""
    uses = {}
    for request in range(len(trace)):
        first = int(trace.parent[request])
        uses.setdefault(request if first < 0 else first, []).append(int(trace.keep[request]))
    return [(max(kept), len(kept)) for kept in uses.values()]


@pytest.mark.parametrize(("generate", "long"), [(article_a, 15), (article_b, 200)])
def test_the_workloads_of_the_article(generate, long):
    trace = generate(seed=1)
    reused = [(length, uses) for length, uses in prefixes(trace) if uses > 1]
    short_uses = [uses for length, uses in reused if length <= 1024]
    long_uses = [uses for length, uses in reused if length >= 4096]
    assert all(256 <= n <= 1024 or 4096 <= n <= 12288 for n, _ in reused)
    assert 35 <= len(short_uses) <= 40
    assert max(short_uses) > 3 * np.median(short_uses)
    total_long = 300 if long == 15 else len(trace) - 600
    assert set(long_uses) == ({20} if long == 15 else {2})
    assert len(trace) == 600 + total_long
    if long == 200:
        assert 200 + len(long_uses) == total_long
        assert 70 < len(long_uses) < 130
    again = trace.keep > 0
    suffix = trace.input_len[again] - trace.keep[again]
    assert suffix.min() >= 30 and suffix.max() <= 120
    assert trace.output_len.min() >= 50 and trace.output_len.max() <= 150
    assert len(np.unique(trace.symbols)) == len(trace.symbols)


def test_shared_prefix():
    trace = shared_prefix(groups=3, prompts=4, system=10, question=5, output=2)
    assert len(trace) == 12
    assert [(length, uses) for length, uses in prefixes(trace)] == [(10, 4)] * 3
    assert set(trace.input_len) == {15}
    assert set(trace.output_len) == {2}
    assert set(trace.system_len) == {10}


@pytest.mark.parametrize("name", ["article-a", "article-b", "shared-prefix"])
def test_a_seed_fixes_the_trace(name):
    one, same, other = (load_trace(f"gen:{name}?seed={seed}") for seed in (3, 3, 4))
    assert one.symbols.tolist() == same.symbols.tolist()
    assert one.parent.tolist() == same.parent.tolist()
    assert one.parent.tolist() != other.parent.tolist()
    assert one.assumptions and np.isnan(one.arrival).all()


def test_options_apply_to_generated_traces():
    spec = "gen:shared-prefix?groups=2&prompts=3&system=8&question=1&output=1&seed=1"
    trace = load_trace(spec, arrival="poisson:10", limit=4)
    assert len(trace) == 4
    assert (np.diff(trace.arrival) > 0).all()
    assert len(load_trace("gen:article-a", max_input_tokens=2000)) == 600


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("gen:article-c", "'article-c' is not known; allowed: article-a"),
        ("gen:article-a?groups=3", "'groups' is not known; allowed: seed"),
        ("gen:article-a?seed=x", "seed 'x' is not allowed"),
        ("gen:article-a?seed=1&seed=2", "'seed' is given twice"),
        ("gen:article-a?seed", "seed '' is not allowed"),
        ("gen:shared-prefix?groups=0", "groups 0 is not allowed; allowed: from 1"),
        ("gen:shared-prefix?groups=1000000000", "too many; allowed: up to 268435456"),
    ],
)
def test_specifications_that_are_refused(spec, reason):
    with pytest.raises(ValueError) as error:
        load_trace(spec)
    assert reason in str(error.value)

"""Requests that a client has written with intent, on a real cache."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from driver import Driver
from harness import make_cache
from saving_driver import SavingDriver, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_hybrid.adapter import wanted
from sglang_hybrid.adapter.record_export import RecordExport
from sglang_hybrid.adapter.recorder import Recorder
from sglang_hybrid.adapter.stops import _MOST_IDS, _stop_ids
from sglang_hybrid.core import pages
from sglang_hybrid.core.pages import namespace_of

KEYS = [
    "",
    " ",
    "a\0b",
    "\0",
    "\ud800",
    "\udcff\ud800",
    "\u202e",
    "é" * 1000,
    "x" * 10**6,
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:20])
@pytest.mark.parametrize("saves", [False, True])
def test_keys_of_any_text(key, saves):
    cache = saving_cache({}) if saves else make_cache({"min_gain_tokens": 1})
    driver = SavingDriver(cache) if saves else Driver(cache)
    cache.recorder = Recorder(2, 16)
    prompts = [[*range(1, 200), 1000 + i] for i in range(3)]
    salts = (None, key or "salt")
    for salt in salts:
        driver.keys = {"cache_salt": salt}
        assert [driver.serve(prompt, extra_key=key) for prompt in prompts] == [0, 0, 199]
    # What SGLang makes of the key, and our hook where this process has it.
    key = driver.request([1], key).extra_key
    spaces = {namespace_of(key, salt) for salt in salts}
    assert len(spaces) == 2
    assert set(cache.recorder.window().namespace.tolist()) == spaces


@pytest.mark.parametrize("token", [-1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63)])
def test_token_ids_beyond_any_vocabulary(token):
    """SGLang does not look at them; with a model it fails where it embeds them."""
    cache = make_cache({"min_gain_tokens": 1})
    driver = Driver(cache)
    shared = [*range(1, 100), *[token] * 100]
    assert [driver.serve([*shared, i, token]) for i in range(5, 8)] == [0, 0, 199]
    assert cache.wanted.forks is not None


@pytest.mark.parametrize("asked", [True, [1], "explain_cache", 7, {"explain_cache": [1]}, {1: 2}])
def test_custom_params_of_any_kind(asked):
    driver = Driver(make_cache({}))
    driver.custom_params = asked
    req = driver.admit([1, 2, 3])
    assert not hasattr(req, "hybrid_short_hit")


def stop_ids(stop_token_ids):
    """Those of a request that SGLang has taken in."""
    driver = Driver(make_cache({}))
    req = driver.admit([1, 2, 3])
    req.tokenizer, req.eos_token_ids = None, {2}
    req.sampling_params = type(req.sampling_params)(stop_token_ids=stop_token_ids)
    return _stop_ids(req)


def test_stop_tokens_of_any_number_and_size():
    assert stop_ids([2**63, -(2**63), 2**70, 2**31, -1, 5]) == (2, 5)
    assert stop_ids(range(10**6, 0, -1)) == tuple(range(1, _MOST_IDS + 1))


@pytest.mark.parametrize("part", [float("nan"), float("inf"), -float("inf"), 1e300, -1, 0.5])
def test_parts_of_a_record_that_there_cannot_be(part):
    cache = SimpleNamespace(recorder=Recorder(2, 16))
    assert not RecordExport(cache).ask(part)


@pytest.mark.parametrize("policy", ["utility", "density"])
def test_tenants_share_no_fork_end_or_evicted_place(policy):
    """What is remembered of one salt makes no checkpoint and explains no miss in another."""
    cache = make_cache({"policy": policy}, slots=8, tokens=2400)
    driver = Driver(cache)
    driver.custom_params = {"explain_cache": True}

    def prompt(i):
        return [*range(1, 257), *range(1000 * i, 1000 * i + 100)]

    def serve(salt, i):
        driver.keys = {"cache_salt": salt}
        req = driver.start(prompt(i))
        driver.finish(req, [7, 8, 9])
        return req

    for i in (11, 12, 13):
        serve("a", i)
    cache.evict(EvictParams(num_tokens=2400, mamba_num=8))
    assert not cache.view.checkpoints
    before = cache.counters.ghost_fork_checkpoints
    other = [serve("b", i) for i in (11, 12)]
    assert [req.hit for req in other] == [0, 0]
    assert [req.hybrid_short_hit.evicted for req in other] == [0, 0]
    assert [req.hybrid_turn for req in other] == [0, 0]
    assert cache.counters.ghost_fork_checkpoints == before
    own = serve("a", 14)
    assert own.hybrid_short_hit.evicted == 256
    assert cache.counters.ghost_fork_checkpoints == before + 1


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


@pytest.mark.parametrize("policy", ["utility", "density"])
def test_colliding_hashes_hit_nothing_of_others(policy, monkeypatch):
    """With hashes of pages' first tokens, wishes are misplaced; hits come from the tree's tokens.

    The driver checks that every state that is hit is that of the request's own tokens.
    """
    factors = np.zeros_like(pages._FACTORS)
    factors[0] = pages._FACTORS[0]
    monkeypatch.setattr(pages, "_FACTORS", factors)
    monkeypatch.setattr(wanted, "namespace_of", lambda *_: 0)
    cache = make_cache({"policy": policy, "min_gain_tokens": 1}, slots=8, tokens=2400)
    driver, rng, before = Driver(cache), random.Random(0), {"a": [], "b": []}
    for i in range(40):
        tenant = "ab"[i % 2]
        driver.keys = {"cache_salt": tenant}
        prompt = [*range(1, 1 + rng.choice([70, 130, 200])), *range(1000 * i, 1000 * i + 150)]
        most = max((common(prompt, old) for old in before[tenant]), default=0)
        assert driver.serve(prompt) <= most
        before[tenant].append([*prompt, 7, 8])
    assert cache.counters.ghost_fork_checkpoints  # the collisions made some

"""Reports of shared prefixes that hit less than they could, or nothing."""

import itertools
import random

import pytest
from harness import Driver, make_cache
from saving_driver import SavingDriver, saving_cache
from stock_driver import StockDriver, sharing, stock_cache, unique

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.presets import load_model

COSTS = load_model("qwen3-next-80b-a3b").costs
"""Gated delta-nets and attention, as in most of the reports: a state is the KV of 3,144 tokens."""

STRATEGIES = pytest.mark.parametrize("extra_buffer", [False, True], ids=["no_buffer", "extra"])
LONG = {"slots": 48, "rows": 4, "context": 1 << 16, "costs": COSTS}


def ours(config=None, tokens=1 << 18, **options):
    return saving_cache({"min_gain_tokens": 128, **(config or {})}, tokens=tokens, **options)


CHAIN, FORK = 32_768, 8192
QUESTION = 64


def fork_probe(driver) -> list[int]:
    """Hits of the probe of #38000: three chains, a fork of the first, all chains again."""
    chains = [unique(CHAIN + QUESTION, salt) for salt in (1, 2, 3)]
    for chain in chains:
        driver.serve(chain, [7])
    fork = [*chains[0][:FORK], *unique(CHAIN + QUESTION - FORK, 4)]
    return [driver.serve(prompt, [7]) for prompt in (fork, *chains)]


@STRATEGIES
def test_the_fork_probe_with_its_numbers(extra_buffer):
    """sglang #36935, probe of #38000: three distinct chains of 32k tokens, a fork of the first
    at 8192, all chains again; 48 slots, chunks of 2048. Main hits 0, 8192, 0, 0 and so does
    SGLang 0.5.23 here; a patch that thins the states of a path reaches the second list.
    """
    stock = stock_cache(tokens=1 << 18, extra_buffer=extra_buffer, **LONG)
    assert fork_probe(StockDriver(stock, 2048)) == [0, FORK, 0, 0]
    cache = ours(extra_buffer=extra_buffer, **LONG)
    hits = fork_probe(SavingDriver(cache, 2048))
    assert all(hit >= least for hit, least in zip(hits, [8192, 8192, 16_384, 28_672], strict=True))
    assert hits == [FORK, CHAIN, CHAIN, CHAIN]


@STRATEGIES
def test_states_at_chunk_boundaries_are_spread_over_the_path(extra_buffer):
    """sglang #36935: of three chains with 51 boundaries in 48 slots, none loses the states of
    one end. SGLang 0.5.23 keeps the last ones only."""
    cache = ours(extra_buffer=extra_buffer, **LONG)
    driver = SavingDriver(cache, 2048)
    for salt in range(1, 7):  # twice as many as fit
        driver.serve(unique(CHAIN + QUESTION, salt), [7])
    left = {}
    for key, checkpoint in cache.view.checkpoints.items():
        if checkpoint.kind == Kind.CHUNK:
            assert checkpoint.is_first_victim
            node = cache.tree_core.node_by_id(key)
            while node.parent.parent is not None:
                node = node.parent
            left.setdefault(node.key.token_ids[0] // 100_000, []).append(checkpoint.depth)
    assert set(left) == set(range(1, 7))
    for depths in left.values():
        places = [0, *sorted(depths), CHAIN]
        assert max(b - a for a, b in itertools.pairwise(places)) <= CHAIN // 2, left


SHARED = 40_960


@STRATEGIES
def test_a_long_prefix_is_hit_although_prefills_made_more_states_than_slots(extra_buffer):
    """sglang #36935: a prefix of 40k tokens, shared by requests whose own parts are long too,
    was hit by none of them: every prefill pushed out the states that the next one needed.
    SGLang 0.5.23 does so here.
    """

    def hits(driver):
        prompts = [sharing(SHARED, 24_000, salt) for salt in (1, 2, 3)]
        return [driver.serve(prompt, [7]) for prompt in prompts]

    options = {**LONG, "slots": 12, "extra_buffer": extra_buffer}
    assert hits(StockDriver(stock_cache(tokens=1 << 18, **options), 2048)) == [0] * 3
    later = hits(SavingDriver(ours(**options), 2048))[1:]
    assert all(hit >= SHARED - 2048 for hit in later), later  # the last boundary, or all of it


@pytest.mark.parametrize("shared", [1600, 1500])
@STRATEGIES
def test_the_composition_of_the_prompt_does_not_matter(extra_buffer, shared):
    """vllm #45238: 64 prompts of 2,200 tokens; of those that shared 1,600 tokens 52 hit, of
    those that shared 1,500 none, because the one state kept lay in what was not shared.
    """
    cache = ours(slots=24, tokens=1 << 14, extra_buffer=extra_buffer, costs=COSTS)
    driver = SavingDriver(cache, 2048)
    hits = [driver.serve(sharing(shared, 2200 - shared, salt), [7]) for salt in range(1, 65)]
    assert hits == [0, 0, *[shared] * 62]


def test_prompts_are_shared_where_answers_differ():
    """sglang #37834: under ``no_buffer`` the state is kept behind the answer (608 tokens of a
    prompt of 601), so that requests with the same prompt hit nothing of the 600 cached tokens.
    SGLang 0.5.23 does so here.
    """
    prompt = unique(601, 1)

    def hits(driver):
        return [driver.serve(prompt, range(9000 + 10 * i, 9008 + 10 * i)) for i in range(5)]

    assert hits(StockDriver(stock_cache(slots=24))) == [0] * 5
    for config in ({}, {"prompt_end": "never"}):
        assert hits(Driver(make_cache(config, slots=24))) == [0, 0, 600, 600, 600]


@pytest.mark.parametrize("policy", ["lru", "auto"])
def test_old_states_of_a_session_do_not_stay_hot(policy):
    """sglang #31643: a hit refreshed all states of its path, so that under pressure whole idle
    sessions went instead of the states that no turn needs any more (hit rate 0.61 for 0.83).
    Here: twelve sessions for twelve rounds, each in another order, with slots for four states of
    each session; every turn goes on where the last one ended.
    """
    cache = ours({"prompt_end": "never", "policy": policy}, slots=50, tokens=1 << 15)
    driver, sessions, last = Driver(cache), [unique(100, i) for i in range(1, 13)], [0] * 12
    for turn in range(12):
        for i in random.Random(turn).sample(range(12), 12):
            session = sessions[i]
            answer = unique(20, 100 + 12 * turn + i)
            assert driver.serve(session, answer) == last[i], (turn, i)
            last[i] = len(session) + len(answer) - 1
            session += [*answer, *unique(80, 300 + 12 * turn + i)]
    assert cache.counters.evicted_states > 60

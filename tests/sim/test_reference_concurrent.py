"""Requests that overlap. A prefill takes 1 s, an output token 10 s, unless a test says else."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec

from .reference import Schedule
from .scenarios import MARCONI, run
from .strategies import random_admission, random_policy, random_trace


def one_second(tokens, hit):
    return 1.0


def overlap(replay, *texts, running=4, seconds=one_second, **options):
    schedule = Schedule(running, 10.0)
    return run(replay, *texts, schedule=schedule, prefill_seconds=seconds, **options)


def test_what_runs_is_pinned_and_makes_the_next_wait(replay):
    texts, arrivals = ["abcd|ef", "ghij|kl"], [0.0, 5.0]
    # 16 bytes each. With 32 both run; r1 starts on arrival.
    out = overlap(replay, *texts, arrivals=arrivals, budget=32)
    assert (out.ttft, out.victims) == ([1.0, 1.0], [])
    # With 31 r1 waits for the end of r0 at 1 + 20, then pushes it out.
    out = overlap(replay, *texts, arrivals=arrivals, budget=31)
    assert (out.ttft, out.victims) == ([1.0, 17.0], [(1, 6, True)])
    assert (out.rejected, out.used_bytes) == ([False, False], 16)


def test_so_many_run_at_once(replay):
    out = overlap(replay, "abcd|ef", "ghij|kl", arrivals=[0.0, 5.0], running=1)
    assert out.ttft == [1.0, 17.0]


def test_prefills_run_one_after_another(replay):
    out = overlap(replay, "ab|c", "de|f", "gh|i", arrivals=[0.0, 0.0, 2.5])
    assert out.ttft == [1.0, 2.0, 1.0]
    out = overlap(replay, "ab|c", "abcde|f", seconds=lambda n, hit: n - hit, arrivals=[0.0, 50.0])
    assert (out.hits, out.ttft) == ([0, 3], [2.0, 2.0])


def test_without_arrivals_requests_start_as_soon_as_they_may(replay):
    out = overlap(replay, "ab|c", "de|f", running=1)
    assert out.ttft == [1.0, 12.0]  # r1 had arrived with r0, at 0, and starts at 11


def test_the_prompt_is_there_at_the_start_the_output_at_the_end(replay):
    texts = ["abcd|ef", "abcdefg|h"]
    assert run(replay, *texts, admission=MARCONI).hits == [0, 6]
    out = overlap(replay, *texts, admission=MARCONI, arrivals=[0.0, 5.0])
    assert (out.matched, out.hits) == ([0, 4], [0, 0])
    # r1 took a branch state at 4 and brought `efg`; r0 at its end only the state at 6.
    assert out.states == [4, 6, 8]
    assert (out.kv_tokens, out.kv_tokens_inserted) == (8, 8)
    late = overlap(replay, *texts, admission=MARCONI, arrivals=[0.0, 21.0])
    assert late.hits == [0, 6]  # an end at the moment of a start comes first


def test_a_failed_start_touches_nothing(replay):
    # r0 made `ab|c`; r1 runs from 20 to 41 on 16 bytes. r2 would hit r0's state, needs 12
    # beside 13 + 16 of 40: waits. Started at 41, it hits once, and r1's leaf goes.
    texts, arrivals = ["ab|c", "ghij|kl", "abcX|Y"], [0.0, 20.0, 21.0]
    out = overlap(replay, *texts, arrivals=arrivals, budget=40)
    assert (out.hits, out.ttft) == ([0, 0, 3], [1.0, 1.0, 21.0])
    assert out.victims == [(2, 6, True)]
    assert out.states_used == 1


def test_alone_and_still_too_large_is_rejected(replay):
    texts, arrivals = ["ab|c", "ghijklmnop|q"], [0.0, 5.0]
    out = overlap(replay, *texts, arrivals=arrivals, budget=20)
    assert out.rejected == [False, True]
    assert out.ttft == [1.0, 7.0]  # it had waited until 11
    assert (out.states, out.victims) == ([3], [])


def test_a_rejected_request_pins_what_it_found(replay):
    # r1 hits `abc`, needs 18 beside 13 of 30, is rejected and runs from 11 to 22. r2 needs
    # 18 beside the pinned 13, waits for that end, and pushes out `abc`.
    texts = ["ab|c", "abc01234567|z", "pqrstuv|w"]
    out = overlap(replay, *texts, arrivals=[0.0, 11.0, 12.0], budget=30)
    assert (out.hits, out.rejected) == ([0, 3, 0], [False, True, False])
    assert out.ttft == [1.0, 1.0, 11.0]
    assert out.victims == [(2, 3, True)]


def test_kv_beside_a_pinned_path_is_freed_up_to_it(replay):
    # r1 runs on `ab` of r0's `abcd` alone and takes no state (grid); r2 pushes out r0's
    # leaf: 2 tokens go at once, the other 2 when r1 ends.
    grid = Admission(prompt_end=4)
    texts, arrivals = ["abcd|", "ab|", "efgh|"], [0.0, 5.0, 5.5]
    out = overlap(
        replay, *texts, admission=grid, arrivals=arrivals, budget=17, seconds=lambda n, hit: 4.0
    )
    assert out.victims == [(2, 4, True)]
    assert out.ttft == [4.0, 4.0, 7.5]
    assert (out.kv_tokens, out.kv_tokens_evicted, out.states) == (4, 4, [4])


@pytest.mark.parametrize("seed", range(60))
def test_far_apart_requests_replay_as_one_after_another(replay, seed):
    random = Random(seed)
    trace = random_trace(random, 20)
    trace = replace(trace, arrival=np.arange(20.0) * 1e6)
    admission = replace(random_admission(random), first_victims=False)
    costs = ModelCosts(1.0, 12.0, 3.0, 0.5)
    arguments = (trace, costs, random_policy(random), admission, Budget(120.0))
    serial = replay(*arguments, prefill_seconds=one_second)
    apart = replay(*arguments, schedule=Schedule(3, 0.5), prefill_seconds=one_second)
    assert serial == apart


def test_states_of_the_output_stay_reserved(replay):
    # Pools: r0 holds one slot for its end while it runs, so r1 waits for it (21), though
    # nothing at all is there to be seen yet.
    texts = ["abcd|ef", "ghij|kl"]
    out = overlap(replay, *texts, arrivals=[0.0, 5.0], pools=(1, 100))
    assert out.ttft == [1.0, 17.0]
    out = overlap(replay, *texts, arrivals=[0.0, 5.0], pools=(2, 11), policy=PolicySpec("gdsf"))
    assert out.ttft == [1.0, 17.0]  # 4 tokens resident and 2 reserved, beside 6

"""Random requests over tiny and ample pools, against a brute-force model of the cache.

A hypothesis state machine (`cache_machine`) drives the real cache over real pools through a
small copy of the scheduler's loop, step by step, in all strategies, page sizes and modes, and
compares it with `cache_model` after every step.

CI runs a fixed number of fixed examples. For nights the environment variable MACHINE_EXAMPLES
sets how many random ones run instead at each place, and ``--hypothesis-seed`` repeats them:

    MACHINE_EXAMPLES=100 pytest tests/cache/test_machine.py --timeout 0 --hypothesis-seed 7

A failure prints the shrunk steps; the case belongs into `test_machine_findings`, by name.
"""

import os

import pytest
from cache_machine import CacheMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from machine_setups import FEW_UNIFIED, PLACES, UNIFIED

EXAMPLES = os.environ.get("MACHINE_EXAMPLES")
ALL_PLACES = [*PLACES, *(UNIFIED if EXAMPLES else FEW_UNIFIED)]

SETTINGS = settings(
    max_examples=int(EXAMPLES or 5),
    stateful_step_count=40,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("place", ALL_PLACES, ids=lambda place: "-".join(map(str, place)))
def test_the_cache_agrees_with_the_model(place):
    name = "CacheMachine_" + "_".join(map(str, place))
    machine = type(name, (CacheMachine,), {"place": place})
    run_state_machine_as_test(machine, settings=SETTINGS)

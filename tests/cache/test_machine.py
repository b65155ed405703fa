"""Random requests over tiny and ample pools, against a brute-force model of the cache.

A hypothesis state machine (`cache_machine`) drives the real cache over real pools through a
small copy of the scheduler's loop, step by step, in all strategies, page sizes and modes, and
compares it with `cache_model` after every step.

CI runs a fixed number of fixed examples. For nights the environment variable MACHINE_EXAMPLES
sets how many random ones run instead, and ``--hypothesis-seed`` repeats them:

    MACHINE_EXAMPLES=2000 pytest tests/cache/test_machine.py --timeout 0 --hypothesis-seed 7

A failure prints the shrunk steps; the case belongs into `test_machine_findings`, by name.
"""

import os

from cache_machine import CacheMachine
from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("MACHINE_EXAMPLES")

CacheMachine.TestCase.settings = settings(
    max_examples=int(EXAMPLES or 60),
    stateful_step_count=50,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
test_the_cache_agrees_with_the_model = CacheMachine.TestCase

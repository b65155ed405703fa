"""Exact under load: mixed traffic on tiny pools, every answer compared."""

import pytest
from soak_report import Visit, line
from soak_run import Load
from soak_servers import SETUPS, running

JOBS, SEED = 100, 1
"""The servers are sent the same, so that the reference is asked once."""


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
@pytest.mark.usefixtures("compiled_replay")
def test_answers_are_exact_under_load_and_nothing_is_lost(setup, answers, model, tmp_path):
    with running(setup, model, tmp_path) as soaked:
        result = Load(soaked, answers, SEED, setup.name).run(JOBS)
        print(line(setup.name, result))
        visit = Visit(setup.name, [result])
        visit.check_answers()
        soaked.check_nothing_is_lost(flush=True)
        visit.check_pressure(setup)

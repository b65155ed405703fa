"""`make soak`: one server after another under load, new seeds until the time is over.

Environment variables: ``SOAK_MINUTES`` says how long, ``SOAK_SERVERS`` on which servers (names with
commas between them; all), ``SOAK_SEED`` where the seeds begin, to run a failure again.
"""

import itertools
import os
import time

import pytest
from soak_report import Visit, line, table
from soak_run import Load
from soak_servers import MORE_SETUPS, SETUPS, running

JOBS = 200
LEAST_VISIT_S = 120
"""Of one server: a few rounds."""

MOST_GROWTH = 4.0
"""Resident memory of the scheduler in MiB per 1,000 requests, once it is warm."""

ENOUGH = 5000
"""Requests to one server from which on its growth is asserted; before, it warms up."""

MINUTES = float(os.environ.get("SOAK_MINUTES", 10))
ALL_SETUPS = {setup.name: setup for setup in (*SETUPS, *MORE_SETUPS)}


def chosen():
    names = os.environ.get("SOAK_SERVERS") or ",".join(ALL_SETUPS)
    unknown = set(names.split(",")) - ALL_SETUPS.keys()
    assert not unknown, f"SOAK_SERVERS: {unknown}; allowed: {', '.join(ALL_SETUPS)}"
    return [ALL_SETUPS[name] for name in names.split(",")]


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 3600)
@pytest.mark.usefixtures("compiled_replay")
def test_servers_stay_exact_for_as_long_as_asked(answers, model, tmp_path, capsys):
    setups = chosen()
    end = time.monotonic() + 60 * MINUTES
    share = max(LEAST_VISIT_S, 60 * MINUTES / len(setups))
    seeds, visits = itertools.count(int(os.environ.get("SOAK_SEED", 100))), []
    for setup in itertools.cycle(setups):
        if time.monotonic() > end:
            break
        visit = Visit(setup.name)
        visits.append(visit)
        with running(setup, model, tmp_path) as soaked:
            until = min(end, time.monotonic() + share)
            while not visit.rounds or time.monotonic() < until:
                seed = next(seeds)
                result = Load(soaked, answers, seed, f"{setup.name}-{seed}").run(JOBS)
                visit.rounds.append(result)
                answers.forget()
                with capsys.disabled():
                    print(line(setup.name, result), flush=True)
                visit.check_answers()
                soaked.check_nothing_is_lost(flush=len(visit.rounds) % 3 == 0)
            soaked.check_nothing_is_lost(flush=True)
        visit.check_pressure(setup)
    with capsys.disabled():
        print(f"\n{table(visits)}")
    grown = [
        f"{visit.name}: {visit.growth():.2f} MiB per 1,000 requests"
        for visit in visits
        if visit.requests >= ENOUGH and visit.growth() > MOST_GROWTH
    ]
    assert not grown, grown

"""The compiled replay does what the reference does, request by request, victim by victim."""

from dataclasses import fields

import pytest

from . import compiled, reference
from .strategies import POLICIES, random_case

BLOCKS = 10
CASES_PER_BLOCK = 40


def check(case) -> None:
    expected, found = case.replay(reference.replay), case.replay(compiled.replay)
    for field in fields(expected):
        assert getattr(found, field.name) == getattr(expected, field.name), (field.name, case)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_cases(policy, block):
    for seed in range(block * CASES_PER_BLOCK, (block + 1) * CASES_PER_BLOCK):
        check(random_case(seed, policy=policy))


@pytest.mark.parametrize("seed", range(4))
def test_long_cases_in_which_density_learns_and_forgets(seed):
    check(random_case(seed, policy="density", requests=800, concurrent=seed % 2 == 1))

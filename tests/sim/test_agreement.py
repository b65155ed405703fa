"""The compiled replay does what the reference does, request by request, victim by victim."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import compiled, reference
from .strategies import POLICIES, random_case

CASES_PER_POLICY = 400


def check(case) -> None:
    expected, found = case.replay(reference.replay), case.replay(compiled.replay)
    for field in fields(expected):
        assert getattr(found, field.name) == getattr(expected, field.name), (field.name, case)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=CASES_PER_POLICY, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_cases(policy, seed):
    check(random_case(seed, policy=policy))


@pytest.mark.parametrize("seed", range(4))
def test_long_cases_in_which_density_learns_and_forgets(seed):
    check(random_case(seed, policy="density", requests=800, concurrent=seed % 2 == 1))

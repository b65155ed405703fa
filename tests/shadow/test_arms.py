"""What a server can choose from."""

import pytest

from sglang_hybrid.shadow.arms import arms_for, bootstrap_arms, lru_index
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.tuning import ALPHAS, ASKED, Arm, parse_policy

SHIPPED, STRICT = parse_admission("shipped"), parse_admission("ghost")


def test_auto_starts_with_density_and_knows_lru():
    arms = arms_for("auto", SHIPPED)
    assert (arms[0].name, arms[0].admission) == ("density", None)
    assert arms[lru_index(arms)].name == "lru"
    assert {arm.policy.kind for arm in arms} == {"utility", "lru", "marconi", "density"}
    assert len({arm.name for arm in arms}) == len(arms) == 16


def test_auto_varies_an_admission_only_where_that_makes_a_difference():
    assert sum(arm.admission == ASKED for arm in arms_for("auto", SHIPPED)) == 8
    assert not any(arm.admission == ASKED for arm in arms_for("auto", STRICT))


def test_marconi_tunes_alpha_from_lru_upwards():
    arms = arms_for("marconi", SHIPPED)
    assert lru_index(arms) == 0
    assert [arm.policy.alpha for arm in arms] == [0, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8]
    assert {(arm.policy.kind, arm.admission) for arm in arms} == {("marconi", None)}


def test_bootstrap_has_the_grid_of_the_replay():
    assert tuple(arm.policy.alpha for arm in bootstrap_arms()) == ALPHAS


def test_other_policies_are_not_tuned():
    with pytest.raises(ValueError, match="'utility' is not tuned"):
        arms_for("utility", SHIPPED)
    with pytest.raises(ValueError, match="no LRU among the arms"):
        lru_index([Arm(parse_policy("utility"))])

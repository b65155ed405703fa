"""Shared by all tests."""

import pytest
from hypothesis import settings

settings.register_profile("night", max_examples=2000, deadline=None)


@pytest.fixture(scope="session")
def compiled_replay():
    """The compiled replay is in its cache on disk.

    The shadow process runs at the lowest priority: a test that waits for it must not wait
    until it has compiled on a busy machine.
    """
    from sglang_hybrid.core.costs import ModelCosts
    from sglang_hybrid.shadow.arms import arms_for
    from sglang_hybrid.shadow.messages import Settings
    from sglang_hybrid.shadow.process import warm_up
    from sglang_hybrid.sim.admission import parse_admission
    from sglang_hybrid.sim.budget import Budget

    costs = ModelCosts(64, 6400, 1e6, 1e2)
    admission = parse_admission("shipped")
    pools = Budget(1e6, state_slots=8, kv_tokens=4096)
    warm_up(Settings(costs, admission, pools, arms_for("auto", admission)))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Folder of the small model."""
    from sglang_hybrid.model.make_model import make_small_model

    path = tmp_path_factory.mktemp("model") / "small"
    make_small_model(path)
    return path

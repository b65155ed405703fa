"""Shared by all tests."""

import pytest
from hypothesis import settings

settings.register_profile("night", max_examples=2000, deadline=None)

FOLDERS_WITH_SERVERS = {"hicache", "matrix", "reports", "server", "soak", "support"}
SHARED_SERVERS = ("served", "combined", "crowded", "answers")
"""Session fixtures: a server, or one for each parameter."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Keep together what shares a server or a module, and begin with what starts servers.

    Of two workers (`make test`), one computes while the other waits for its server.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    yield  # pytest-xdist reads the groups, pytest sorts by parameters
    items.sort(key=lambda item: item.path.parent.name not in FOLDERS_WITH_SERVERS)


def _group_of(item):
    parameters = item.callspec.indices if hasattr(item, "callspec") else {}
    for name in SHARED_SERVERS:
        definitions = item._fixtureinfo.name2fixturedefs.get(name)
        if definitions and definitions[-1].scope == "session":
            return f"{name}-{parameters.get(name, 0)}"
    return item.nodeid.partition("::")[0]


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

"""Shared by all tests."""

import os
from contextlib import contextmanager

import pytest
from combinations import ALL
from filelock import FileLock
from hypothesis import settings
from setups import SETUPS

settings.register_profile("night", max_examples=2000, deadline=None)

FOLDERS_WITH_SERVERS = {"hicache", "matrix", "reports", "server", "soak", "support"}
_ONE_WORKER = ("soak", "support")
"""Folders whose modules share servers."""
_LONGEST_FIRST = ("test_each_patch", "test_tracked_positions", "test_alpha_auto", "test_series")
_SETUPS = [setup.name for setup in SETUPS] + [each.name for each in ALL]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with what starts servers: of two workers, one computes while the other waits.

    Of the series for SGLang, begin with what takes longest: the workers then end together.
    """
    items.sort(key=lambda item: item.path.parent.name not in FOLDERS_WITH_SERVERS)
    if items and all(item.path.parent.name == "patches" for item in items):
        order = {name: place for place, name in enumerate(_LONGEST_FIRST)}
        items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep on one worker what shares a module or a server."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _group_of(nodeid)

    return ByServer(config, log)


def _group_of(nodeid):
    path, _, rest = nodeid.partition("::")
    folder = path.split("/")[-2]
    if path.endswith("test_each_patch.py"):
        return nodeid
    if folder in _ONE_WORKER:
        return folder
    if folder in ("server", "matrix"):
        parameters = rest.partition("[")[2]
        for name in sorted(_SETUPS, key=len, reverse=True):
            if parameters.startswith((f"{name}-", f"{name}]")):
                return name
    return path


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """``once(name)``: a folder that all workers share, while no other worker is in it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @contextmanager
    def enter(name):
        folder = shared / name
        folder.mkdir(exist_ok=True)
        with FileLock(folder / "lock"):
            yield folder

    return enter


@pytest.fixture(scope="session")
def compiled_replay(once):
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
    with once("compiled_replay"):
        warm_up(Settings(costs, admission, pools, arms_for("auto", admission)))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Folder of the small model."""
    from sglang_hybrid.model.make_model import make_small_model

    path = tmp_path_factory.mktemp("model") / "small"
    make_small_model(path)
    return path

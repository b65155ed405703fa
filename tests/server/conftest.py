"""Servers are started once per configuration and shared by the tests of a session."""

import pickle

import pytest
from cpu_server import launch
from setups import SETUPS
from workload import reference_outputs


@pytest.fixture(scope="session")
def reference(model, once):
    """Outputs of the mixed workload on a server whose cache is off."""
    flags = ["--disable-radix-cache", "--max-total-tokens", "4096", "--max-running-requests", "4"]
    with once("reference") as folder:
        outputs = folder / "outputs.pickle"
        if not outputs.exists():
            with launch(model, None, *flags, log=folder / "server.log") as server:
                outputs.write_bytes(pickle.dumps(reference_outputs(server)))
        return pickle.loads(outputs.read_bytes())


@pytest.fixture(scope="session", params=SETUPS, ids=lambda setup: setup.name)
def served(request, model, tmp_path_factory):
    """A running server with our cache, and its setup."""
    setup = request.param
    log = tmp_path_factory.mktemp("log") / f"{setup.name}.log"
    with launch(model, None, *setup.flags(), log=log) as server:
        yield server, setup
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]

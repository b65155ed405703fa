"""One server per combination of flags, shared by the tests of it."""

import combinations
import pytest
from cpu_server import launch


def _parameter(combination):
    marks = () if combination in combinations.SUBSET else pytest.mark.matrix
    return pytest.param(combination, id=combination.name, marks=marks)


@pytest.fixture(scope="session", params=map(_parameter, combinations.ALL))
def combined(request, model, tmp_path_factory):
    """A running server, and its combination."""
    combination = request.param
    log = tmp_path_factory.mktemp("log") / f"{combination.name}.log"
    with launch(model, None, *combination.flags(), log=log) as server:
        yield server, combination
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]

"""The server without a cache that answers are compared with."""

import pytest
from soak_reference import Reference
from soak_servers import reference_server


@pytest.fixture(scope="session")
def answers(model, tmp_path_factory):
    """What a server without a cache answers, each request asked once."""
    with reference_server(model, tmp_path_factory.mktemp("log")) as server:
        yield Reference(server.url)

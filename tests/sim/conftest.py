"""Every implementation of `replay` is held against the same scenarios."""

import pytest

from . import compiled, reference

IMPLEMENTATIONS = {"reference": reference.replay, "compiled": compiled.replay}


@pytest.fixture(params=IMPLEMENTATIONS)
def replay(request):
    return IMPLEMENTATIONS[request.param]

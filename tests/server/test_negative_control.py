"""The comparison with a cold run sees a state that was saved one token early."""

import combinations
import pytest
from comparison import BOUNDS, Comparison
from cpu_server import launch
from test_logprobs import LIMIT, branches, divergence, hits
from workload import sharing

FLAGS = combinations.Combination("extra_buffer", True, 2048, 1).flags()
PROGRAM = [__file__.replace("test_negative_control.py", "saves_early.py")]
SHARED = [5, 63, 64, 65, 250, 1024]


@pytest.fixture(scope="module")
def early(model, tmp_path_factory):
    """A server whose prefill saves the states inside it one token early."""
    log = tmp_path_factory.mktemp("log") / "early.log"
    environment = {"TEST_TOKENS_EARLY": "1"}
    with launch(model, None, *FLAGS, log=log, program=PROGRAM, environment=environment) as server:
        yield server


@pytest.mark.parametrize("own", [1, 4, 81])
@pytest.mark.parametrize("shared", SHARED)
def test_one_token_is_seen(early, shared, own):
    early.flush()
    comparison = Comparison(early)
    for i in range(2):
        early.generate(sharing(shared, i), 4)
    assert comparison.ask(sharing(shared, 2, own), 8).hit == shared
    (apart,) = comparison.distances()
    assert apart > BOUNDS["float32"]


def test_the_divergence_sees_it_too(early):
    early.flush()
    answers = branches(early, 251, 30)
    assert hits(answers) == [251] * 2
    assert divergence(early, answers) > LIMIT

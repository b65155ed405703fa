"""What beside the combinations may change a state: other dtypes, retraction."""

import re
from concurrent.futures import ThreadPoolExecutor

import combinations
import pytest
from comparison import BOUNDS, Comparison, answer_of
from cpu_server import launch
from workload import sharing, tokens

pytestmark = pytest.mark.matrix

FLAGS = combinations.Combination("extra_buffer", True, 128, 1).flags()
BFLOAT16 = ["--dtype", "bfloat16", "--mamba-ssm-dtype", "bfloat16"]


@pytest.fixture(scope="module")
def bfloat16(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "bfloat16.log"
    with launch(model, None, *FLAGS, *BFLOAT16, log=log) as server:
        yield server


@pytest.mark.parametrize("shared", [5, 63, 64, 65, 250, 1000, 1024])
def test_states_in_bfloat16(bfloat16, shared):
    bfloat16.flush()
    comparison = Comparison(bfloat16, "bfloat16")
    for i in range(4):
        answer = comparison.ask(sharing(shared, i), 16)
    assert answer.hit == shared
    found = comparison.distances()
    print(f"bfloat16, {shared} shared: {max(found):.3g}")
    assert max(found) < BOUNDS["bfloat16"]


def test_retracted_requests(model, tmp_path):
    """SGLang retracts running requests every few steps, and prefills prompt and output again."""
    log = tmp_path / "retracted.log"
    environment = {"SGLANG_TEST_RETRACT": "1"}
    with launch(model, None, *FLAGS, log=log, environment=environment) as server:
        comparison, options = Comparison(server), {"return_logprob": True, "top_logprobs_num": 2}
        prompts = [[*tokens(151, i % 3), 33 + i, *tokens(i % 7, i)] for i in range(24)]

        def one(prompt):
            return answer_of(server.generate(prompt, 20, **options))

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(one, prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            comparison.add(prompt, 20, answer)
        server.flush()
        comparison.check()
    text = log.read_text(errors="replace")
    assert re.search(r"#retracted_reqs: [1-9]", text) and "Traceback" not in text

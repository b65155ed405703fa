"""Other weights at run time (``/update_weights_from_disk``): what the old ones computed is gone."""

import pytest
import requests
from comparison import Comparison
from workload import sharing

from sglang_hybrid.model.make_model import make_small_model


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The small model with other weights."""
    return make_small_model(tmp_path_factory.mktemp("other") / "model", seed=5)


def load(server, folder):
    body = {"model_path": str(folder)}
    reply = requests.post(f"{server.url}/update_weights_from_disk", json=body, timeout=120)
    assert reply.json()["success"], reply.text


def test_no_hit_on_what_other_weights_computed(crowded, model, other):
    crowded.flush()
    before, after = Comparison(crowded), Comparison(crowded)
    for i in range(3):
        before.ask(sharing(250, i), 4)
    load(crowded, other)
    try:
        for i in range(3):
            after.ask(sharing(250, i), 4)
        assert [answer.hit for answer in after.answers] == [0, 128, 250]
        assert after.answers[0].tokens != before.answers[0].tokens
        after.check()
    finally:
        load(crowded, model)
    before.check()

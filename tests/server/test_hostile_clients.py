"""What clients may send without harm to the server or to each other."""

import json

import pytest
import requests
from workload import hit, sharing, tokens


@pytest.fixture
def one(served):
    """One of the servers, empty."""
    server, setup = served
    if setup.name != "extra_buffer":
        pytest.skip("one server is enough")
    server.flush()
    return server


def post(server, **fields) -> requests.Response:
    """A request that a client has written itself."""
    sampling = {"max_new_tokens": 3, "temperature": 0, **fields.pop("sampling_params", {})}
    body = json.dumps({"sampling_params": sampling, **fields})
    return requests.post(f"{server.url}/generate", data=body, timeout=120)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling_params": {"stop_token_ids": [2**63]}},
        {"sampling_params": {"stop_token_ids": [-1, -(2**63), 2**31, 2**63 - 1]}},
        {"sampling_params": {"stop_token_ids": list(range(200_000, 300_000))}},
        {"sampling_params": {"custom_params": [1]}},
        {"sampling_params": {"custom_params": "explain_cache"}},
        {"sampling_params": {"custom_params": {"explain_cache": {"a": [None]}}}},
        {"extra_key": "\ud800"},
        {"cache_salt": "\udcff"},
        {"extra_key": "a\0b", "cache_salt": "\0"},
        {"extra_key": "x" * 10**6, "cache_salt": "y" * 10**6},
        {"extra_key": ""},
        {"extra_key": 5},
        {"input_ids": [2**70]},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_no_request_ends_the_server(one, fields):
    prompt = tokens(300, 3)
    expected = one.generate(prompt, 3)["output_ids"]
    reply = post(one, **{"input_ids": prompt, **fields})
    assert reply.status_code in (200, 400)
    if reply.status_code == 200:
        assert reply.json()["output_ids"] == expected
    assert one.generate(prompt, 3)["output_ids"] == expected


@pytest.mark.parametrize("key", ["cache_salt", "extra_key"])
def test_tenants_never_hit_each_other(one, key):
    def ask(tenant, prompt):
        return one.generate(prompt, 3, **{key: tenant})["meta_info"]["cached_tokens"]

    assert [ask("a", sharing(200, i)) for i in range(3)] == [0, 0, 200]
    assert [ask("b", sharing(200, i)) for i in range(3)] == [0, 0, 200]
    assert [hit(one, sharing(200, i)) for i in range(3)] == [0, 0, 200]
    assert ask("a", sharing(200, 7)) == 200

"""LoRA adapters: a prefix that was computed with one is not that of another."""

import pytest
from comparison import Comparison
from workload import hit, sharing, tokens

ADAPTERS = (None, "a", "b")
SHARED = 250


def fields(adapter):
    return {} if adapter is None else {"lora_path": adapter}


def test_each_adapter_hits_its_own_prefixes_only(crowded):
    crowded.flush()
    served = {name: Comparison(crowded, options=fields(name)) for name in ADAPTERS}
    for i in range(3):
        for comparison in served.values():
            comparison.ask(sharing(SHARED, i), 4)
    # The second goes on from the end of a chunk.
    for comparison in served.values():
        assert [answer.hit for answer in comparison.answers] == [0, 128, SHARED]
    outputs = {tuple(comparison.answers[0].tokens) for comparison in served.values()}
    assert len(outputs) == len(ADAPTERS)
    for comparison in served.values():
        comparison.check()


@pytest.mark.parametrize("keys", [{"cache_salt": "x"}, {"extra_key": "x"}])
def test_tenants_share_nothing(crowded, keys):
    crowded.flush()
    prompt = tokens(200, 3)
    assert [hit(crowded, prompt) for _ in range(3)] == [0, 128, 199]
    other = [crowded.generate(prompt, 4, **keys)["meta_info"]["cached_tokens"] for _ in range(3)]
    assert other == [0, 128, 199]
    adapted = [crowded.generate(prompt, 4, **keys, lora_path="a") for _ in range(3)]
    assert [each["meta_info"]["cached_tokens"] for each in adapted] == [0, 128, 199]

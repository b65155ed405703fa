"""Random requests over tiny pools: nothing is lost, and every state is at its node."""

import random

import pytest
from contents import namespace_of, signature, states_that_differ
from driver import Driver
from harness import make_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType

CONFIGS = [
    {"policy": policy, "prompt_end": end, "bucket_width": width}
    for policy, end, width in (
        ("utility", "auto", 0.25),
        ("utility", "always", 0),
        ("marconi", "auto", 0),
        ("marconi", "never", 0.25),
        ("lru", "auto", 0.25),
        ("lru", "always", 0.25),
    )
]


def check_states(cache):
    """Each checkpoint's slot holds the state of exactly its node's tokens."""
    slots, expected = [], []
    waiting = [(child, []) for child in cache.tree_core.root_node.children.values()]
    while waiting:
        node, above = waiting.pop()
        tokens = [*above, *node.key.token_ids[: len(node.key)]]
        slot = node.component_data[ComponentType.MAMBA].value
        if slot is not None:
            slots.append(int(slot[0]))
            expected.append(signature(tokens, namespace_of(node.key)))
        waiting += [(child, tokens) for child in node.children.values()]
    assert not states_that_differ(cache.req_to_token_pool, slots, expected)


def random_prompt(rng, history):
    if history and rng.random() < 0.6:
        old = rng.choice(history)
        prompt = old[: rng.randrange(1, len(old) + 1)]
    else:
        start = rng.choice([1, 1, 300])
        prompt = list(range(start, start + rng.randrange(1, 140)))
    return (prompt + [rng.randrange(900, 903) for _ in range(rng.randrange(8))])[:150]


def end_one(driver, rng, running, history, is_aborted):
    """One of ``running`` ends; returns the ``history`` of sequences that finished."""
    req = running.pop(rng.randrange(len(running)))
    output = [rng.randrange(900, 903) for _ in range(rng.randrange(1, 9))]
    if is_aborted or not driver.has_room(len(output)):
        driver.abort(req)
        return history
    driver.finish(req, output)
    return [*history[-11:], [*req.origin_input_ids, *output]]


@pytest.mark.parametrize(
    ("seed", "unified"), [*((seed, False) for seed in range(len(CONFIGS))), (0, True)]
)
def test_random_requests_in_tiny_pools(seed, unified):
    rng = random.Random(seed)
    config = {**CONFIGS[seed], "min_gain_tokens": rng.choice([1, 16])}
    sizes = {"slots": rng.choice([4, 6, 12]), "tokens": rng.choice([600, 1500]), "rows": 4}
    cache = make_cache(config, unified=unified, **sizes)
    driver = Driver(cache, chunk=rng.choice([8, 32, 64]))
    running, history = [], []
    for _ in range(250):
        action = rng.random()
        if action < 0.5:
            prompt, space = random_prompt(rng, history), rng.choice([None, None, "a"])
            if len(running) < 3 and driver.has_room(len(prompt)):
                running.append(driver.start(prompt, space))
        elif running and action < 0.9:
            history = end_one(driver, rng, running, history, is_aborted=action < 0.6)
        elif action < 0.97:
            cache.evict(EvictParams(num_tokens=rng.randrange(60), mamba_num=rng.randrange(3)))
        elif not running:
            cache.reset()
            cache.req_to_token_pool.clear()
            cache.token_to_kv_pool_allocator.clear()
        cache.check_integrity()
        check_states(cache)
    for req in running:
        driver.abort(req)
    assert cache.counters.hit_tokens and cache.counters.evicted_states

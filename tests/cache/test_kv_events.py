"""KV events (``--kv-events-config``): who follows them knows what the tree holds."""

import random

import pytest
from saving_driver import SavingDriver, saving_cache
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.mem_cache.events import hash_str_to_int64


class Follower:
    """A router: the blocks that it believes to be cached, by their hashes."""

    def __init__(self):
        self.blocks = set()
        self.removed = 0

    def read(self, events):
        for event in events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, "a block without its prefix"
                self.blocks.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert self.blocks.issuperset(event.block_hashes), "removed, but never stored"
                self.blocks.difference_update(event.block_hashes)
                self.removed += len(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self.blocks.clear()


def blocks_of(cache):
    """Hashes of all pages whose KV is in the tree."""
    found, stack = set(), list(cache.tree_core.root_node.children.values())
    while stack:
        node = stack.pop()
        stack += node.children.values()
        hashes = cache.tree_core.kv_events._node_event_hash_values(node)
        found.update(hash_str_to_int64(each) for each in hashes)
    return found


@pytest.mark.parametrize(("extra_buffer", "page"), [(False, 1), (True, 16)])
def test_a_follower_knows_what_is_cached(extra_buffer, page):
    cache = saving_cache(
        {"policy": "utility"},
        slots=8,
        tokens=1024,
        extra_buffer=extra_buffer,
        page_size=page,
        kv_events=True,
    )
    driver, follower, rng = SavingDriver(cache, chunk=128), Follower(), random.Random(3)
    trunks = [[rng.randrange(1000) for _ in range(250)] for _ in range(3)]
    for i in range(60):
        trunk = rng.choice(trunks)
        prompt = [*trunk[: rng.randrange(1, 250)], *(rng.randrange(1000) for _ in range(20))]
        driver.serve(prompt, [7] * rng.randrange(1, 40))
        follower.read(cache.take_events())
        assert follower.blocks == blocks_of(cache), i
    # States were evicted whose KV stayed, and KV was evicted too.
    assert cache.counters.evicted_states > 0 and follower.removed > 0
    cache.reset()
    follower.read(cache.take_events())
    assert follower.blocks == set()

"""A client that floods the tree: what we keep beside SGLang's nodes stays within bounds."""

import gc

import pytest
from driver import Driver
from harness import make_cache

from sglang_hybrid.adapter.integrity import _nodes
from sglang_hybrid.adapter.recorder import MAX_PAGES, Recorder
from sglang_hybrid.core.migration import MergedIndex

REQUESTS = 200
SLOTS, TOKENS = 64, 1 << 14


def flooded_cache(policy="auto"):
    cache = make_cache({"policy": policy, "min_gain_tokens": 1}, slots=SLOTS, tokens=TOKENS)
    cache.recorder = Recorder(10, 64)
    driver = Driver(cache)
    # O(tree) after every step; it is called at the end.
    driver.check, cache.check_integrity = cache.check_integrity, lambda: None
    return cache, driver


def check_bounds(cache):
    """Every structure of ours is of a fixed size, or has at most the nodes of the tree."""
    gc.collect()
    view, places, tree = cache.view, cache.explainer.places, cache.view.tree
    ids = {node.id for node in _nodes(cache.tree_core.root_node)}
    for kept in (
        tree._nodes,
        tree._live_children,
        tree.checkpoints,
        view._unsettled,
        places._nodes,
        places._hashes,
        set(view.drawn_from),
        view._drawn_from._places,
        view.states.keys(),
        view.leaves.keys(),
    ):
        assert set(kept) <= ids
    assert len(tree.checkpoints) <= SLOTS and len(view._to_move) <= SLOTS
    for tiers in (view.states, view.leaves):
        for index in tiers.tiers:
            for each in (*index.old, index.new) if isinstance(index, MergedIndex) else (index,):
                heaps = getattr(each, "_heaps", {})
                held = sum(len(heap) for heap in heaps.values())
                assert held <= 2 * len(each) + 33 * len(heaps) and len(heaps) <= len(each)
    assert cache.wanted.forks.num_bytes == 17 << 18
    assert len(cache.recorder.ring) <= 64 and len(cache.recorder._builder) <= 10
    assert not cache._holders


def one_token_different(i):
    return [10**6 + i, *range(64, 140)], None


def children_of_one_fork(i):
    return [*range(100), 10**6 + i], None


def a_path_that_grows(i):
    return list(range(10 + i % 120)), None


def alternating_namespaces(i):
    return [*range(90), i % 7], f"tenant-{i % 97}"


@pytest.mark.parametrize(
    "prompt",
    [one_token_different, children_of_one_fork, a_path_that_grows, alternating_namespaces],
    ids=lambda prompt: prompt.__name__,
)
def test_what_we_keep_is_bounded(prompt):
    cache, driver = flooded_cache()
    placed, most = 0, 0
    place = cache.view._place

    def counted(*args):
        nonlocal placed
        placed += 1
        place(*args)

    cache.view._place = counted
    for i in range(REQUESTS):
        tokens, tenant = prompt(i)
        before = placed
        driver.serve(tokens, extra_key=tenant)
        most = max(most, placed - before)
        if i % 100 == 99:
            check_bounds(cache)
    # A request touches the nodes of its path, of its victims, and the states below a fork.
    assert most <= 4 * (120 if prompt is a_path_that_grows else SLOTS + 16)
    driver.check()
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()
    check_bounds(cache)
    view = cache.view
    for emptied in (view.tree._nodes, view.checkpoints, view.drawn_from, view._unsettled):
        assert not emptied
    assert len(cache.recorder.ring) == 0


class Unwalked(dict):
    """Children of a node that nobody goes through."""

    def values(self):
        raise AssertionError("all children of a fork are gone through")

    items = __iter__ = values


def test_children_without_a_checkpoint_cost_nothing():
    """The state of a fork of many children comes and goes: only live ones are looked at."""
    cache, driver = flooded_cache("utility")
    for i in range(400):
        driver.serve(children_of_one_fork(i)[0])
    view = cache.view
    fork = max(_nodes(cache.tree_core.root_node), key=lambda node: len(node.children))
    assert len(fork.children) > 300 and view.tree.live_children(fork) <= SLOTS
    nearest, below = set(), list(fork.children.values())
    while below:
        node = below.pop()
        if node.id in view.checkpoints:
            nearest.add(node.id)
        else:
            below.extend(node.children.values())
    children, fork.children = fork.children, Unwalked(fork.children)
    found = view.tree._live_below(fork)
    fork.children = children
    assert nearest and {node.id for node in found} == nearest


def test_ways_up_are_walked_once():
    """Many states below a long path of forks without one: each node of it is passed once."""
    cache, driver = flooded_cache("utility")
    trunk = list(range(300))
    for depth in range(20, 300, 3):
        driver.serve([*trunk[:depth], 10**6 + depth])
    for i in range(30):
        driver.serve([*trunk, 10**5 + i])
    view = cache.view
    tree, passed = view.tree, 0
    leaves = [cache.tree_core.node_by_id(key) for key in view.checkpoints]

    class Counted(dict):
        def get(self, key, default=None):
            nonlocal passed
            passed += 1
            return super().get(key, default)

    found_above = Counted()
    facts = [tree.facts(node, found_above) for node in leaves]
    assert passed <= len(leaves) + len(_nodes(cache.tree_core.root_node))
    assert facts == [tree.facts(node) for node in leaves]


def test_a_window_of_records_ends_with_its_pages():
    """However many requests it may have, long prompts do not pile up in it."""
    cache, driver = flooded_cache()
    recorder = Recorder(10**5, 10**6)
    pages = MAX_PAGES // 4
    req = driver.start([1, 2, 3])
    length = pages * 64
    req.origin_input_ids = range(length)
    hashes = [0] * pages
    windows = [recorder.add(req, length, hashes, cache.wanted) for _ in range(9)]
    assert [window is not None for window in windows] == [False, False, False, True] * 2 + [False]
    assert recorder.ring.num_pages <= MAX_PAGES and len(recorder._builder) == 1

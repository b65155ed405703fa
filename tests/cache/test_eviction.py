"""Which checkpoint goes first, on a real cache over real pools."""

from driver import Driver
from harness import COSTS, make_cache, match_length
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.costs import ModelCosts


def unique(length: int, salt: int) -> list[int]:
    return list(range(salt * 10_000, salt * 10_000 + length))


def evict_state(cache):
    """Depth and kind of the state that goes next."""
    before = dict(cache.view.checkpoints)
    cache.evict(EvictParams(num_tokens=0, mamba_num=1))
    cache.check_integrity()
    gone = [before[key] for key in before.keys() - cache.view.checkpoints.keys()]
    assert len(gone) == 1
    return gone[0]


def eviction_order(config, lengths):
    cache = make_cache(config, slots=32)
    driver = Driver(cache)
    for salt, length in enumerate(lengths, start=1):
        driver.serve(unique(length, salt))
    order = []
    while cache.view.checkpoints:
        order.append(evict_state(cache).depth)
    return order


def test_marconi_with_alpha_zero_evicts_in_lru_order():
    lengths = [300, 40, 500, 60, 200, 90]
    lru = eviction_order({"policy": "lru", "prompt_end": "never"}, lengths)
    marconi = eviction_order({"policy": "marconi", "alpha": 0, "prompt_end": "never"}, lengths)
    assert lru == marconi
    assert lru == [length + 2 for length in lengths]


def test_with_alpha_four_a_long_prefix_outlives_newer_short_ones():
    lengths = [2000, 40, 50, 60]
    config = {"policy": "marconi", "alpha": 4, "prompt_end": "never"}
    order = eviction_order(config, lengths)
    assert order.index(2002) > max(order.index(n + 2) for n in lengths[1:])
    order = eviction_order({"policy": "lru", "prompt_end": "never"}, lengths)
    assert order[0] == 2002


def test_a_superseded_decode_end_goes_before_a_branch_of_equal_age():
    # States dear, KV free: without the superseded term the deeper decode end would stay.
    costs = ModelCosts(kv_bytes_per_token=0, state_bytes=1, flops_linear=1, flops_quadratic=0)
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never"}, slots=32, costs=costs)
    driver = Driver(cache)
    for salt in (1, 2):
        driver.serve(unique(100, 9) + unique(30, salt))
    talk = unique(110, 5)
    driver.serve(talk, [1, 2, 3])
    driver.serve([*talk, 1, 2, 3, 4, 5], [6, 7, 8])
    by_kind = {}
    for key, checkpoint in cache.view.checkpoints.items():
        if len(cache.tree_core.node_by_id(key).children) > 0:
            checkpoint.last_use, checkpoint.hits = cache.view.clock - 1, 0
            by_kind[checkpoint.kind] = checkpoint
            cache.view.touch(cache.tree_core.node_by_id(key))
        else:
            checkpoint.last_use = cache.view.clock
            cache.view.touch(cache.tree_core.node_by_id(key))
    assert by_kind[Kind.BRANCH].depth == 100 and by_kind[Kind.DECODE_END].depth == 112
    # The branch has two children; give it one, so that both are ordinary candidates.
    cache.view.settle()
    for key in [k for k in cache.view.checkpoints if cache.view.checkpoints[k].depth == 132][:1]:
        node = cache.tree_core.node_by_id(key)
        cache.view.checkpoints[key].last_use = -(10**6)
        cache.view.touch(node)
        assert evict_state(cache).depth == 132
    assert evict_state(cache) is by_kind[Kind.DECODE_END]


def test_kv_beyond_the_last_state_does_not_supersede_it():
    cache = make_cache({"prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    talk = unique(100, 1)
    driver.serve(talk, [1, 2, 3])
    node = cache.tree_core.node_by_id(_node_of(cache, 102))
    running = driver.start([*talk, 1, 2, 3, 4, 5])  # its prompt's KV is cached, no state yet
    assert len(node.children) == 1 and not cache.view.tree.facts(node).superseded
    driver.finish(running, [6, 7, 8])
    assert cache.view.tree.facts(node).superseded


def test_only_the_consumed_state_is_refreshed():
    """sglang #31643: a hit refreshed every state of its path."""
    cache = make_cache({"policy": "lru", "prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    talk = unique(100, 1)
    driver.serve(talk, [1, 2, 3])
    driver.serve([*talk, 1, 2, 3, 4], [5, 6, 7])
    driver.serve(unique(80, 2))
    driver.serve([*talk, 1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9])
    # The first turn's state lies on the path of the last request, but was not consumed.
    assert evict_state(cache).depth == 102


def test_a_state_goes_alone_and_its_kv_stays_as_evidence():
    cache = make_cache({"policy": "lru", "prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    talk = unique(100, 1)
    driver.serve(talk, [1, 2, 3])
    driver.serve([*talk, 1, 2, 3, 4], [5, 6, 7])
    kv = cache.full_evictable_size()
    assert evict_state(cache).depth == 102 and cache.full_evictable_size() == kv
    assert match_length(cache, [*talk, 1, 2, 3, 4, 5, 6, 7]) == 106
    assert evict_state(cache).depth == 106 and cache.full_evictable_size() == kv
    # Nothing can be hit any longer, but the next request sees where it leaves the path.
    assert driver.serve([*talk, 1, 9, 9]) == 0
    assert driver.serve([*talk, 1, 8, 8]) == 0  # too short to gain 128 tokens
    cache.evict(EvictParams(num_tokens=1))
    assert match_length(cache, [*talk, 1, 9, 9]) == 0


def test_evidence_makes_no_fork():
    cache = make_cache({"policy": "lru", "min_gain_tokens": 1, "prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    for salt in (1, 2, 3):
        driver.serve(unique(200, 9) + unique(30, salt))
    order = [evict_state(cache).depth for _ in range(4)]
    # The branch was last used by the third request, as that one's own end was.
    assert order == [232, 232, 200, 232]


def test_fork_states_go_last():
    cache = make_cache({"min_gain_tokens": 1, "prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    for salt in (1, 2, 3):
        driver.serve(unique(200, 9) + unique(30, salt))
    driver.serve(unique(5, 4))
    depths = [evict_state(cache).depth for _ in range(5)]
    assert depths[-1] == 200 and sorted(depths[:4]) == [7, 232, 232, 232]


def test_first_victims_go_before_older_checkpoints_and_are_thinned():
    cache = make_cache({"policy": "lru"}, slots=40)
    driver = Driver(cache, chunk=100)
    driver.serve(unique(50, 1))
    driver.serve(unique(850, 2))
    chunks = [evict_state(cache) for _ in range(4)]
    assert all(c.kind in (Kind.CHUNK, Kind.PROMPT_END) for c in chunks)
    left = sorted(c.depth for c in cache.view.checkpoints.values() if c.kind == Kind.CHUNK)
    gaps = [b - a for a, b in zip([0, *left], left, strict=False)]
    assert max(gaps) <= 300, left  # spread over the path, not dropped from one end


def test_a_first_victim_that_is_hit_becomes_an_ordinary_checkpoint():
    cache = make_cache({"policy": "lru"}, slots=40)
    driver = Driver(cache)
    driver.serve(unique(300, 1), [1, 2, 3])
    driver.serve(unique(50, 2))
    assert driver.serve([*unique(300, 1), 8, 8]) == 300  # the answer was rendered anew
    hit = next(c for c in cache.view.checkpoints.values() if c.depth == 300)
    assert hit.kind == Kind.PROMPT_END and hit.hits == 1
    # The other prompt's end; the first answer's, after which the hit is no fork; what is older.
    assert [evict_state(cache).depth for _ in range(3)] == [50, 302, 52]


def test_kv_eviction_takes_stateless_leaves_first_then_by_score():
    cache = make_cache({"policy": "lru", "prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    for salt in (1, 2, 3):
        driver.serve(unique(100, salt))
    driver.serve(unique(50, 4))
    cache.view.checkpoints[_node_of(cache, 52)].last_use = -1
    cache.view.touch(cache.tree_core.node_by_id(_node_of(cache, 52)))
    assert evict_state(cache).depth == 52
    for left in (3 * 102, 2 * 102, 102):
        cache.evict(EvictParams(num_tokens=1))
        cache.check_integrity()
        assert cache.full_evictable_size() == left
    assert match_length(cache, [*unique(100, 3), 7, 8]) == 102


def test_locked_states_are_never_victims():
    cache = make_cache({"prompt_end": "never"}, slots=32)
    driver = Driver(cache)
    driver.serve(unique(100, 1), [1, 2, 3])
    driver.serve(unique(100, 2), [1, 2, 3])
    lock = cache.lock(_node_of(cache, 102))
    cache.evict(EvictParams(num_tokens=0, mamba_num=8))
    cache.check_integrity()
    assert [c.depth for c in cache.view.checkpoints.values()] == [102]
    cache.unlock(lock)
    cache.evict(EvictParams(num_tokens=0, mamba_num=8))
    assert not cache.view.checkpoints


def _node_of(cache, depth):
    return next(k for k, c in cache.view.checkpoints.items() if c.depth == depth)


def test_weights_come_from_the_costs_of_the_model():
    cache = make_cache({"prompt_end": "never"}, slots=32)
    Driver(cache).serve(unique(100, 1))
    cache.view.settle()
    (key,) = cache.view.checkpoints
    weight, _ = cache.view._weight(cache.tree_core.node_by_id(key), cache.view.policy)
    freed = COSTS.state_bytes + 102 * COSTS.kv_bytes_per_token
    assert weight == cache.view.policy.weight(COSTS.prefill_flops(102), freed)

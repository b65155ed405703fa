"""A part of the cache that raises is switched off: no request is lost, no state is wrong."""

import random
from types import SimpleNamespace

import pytest
import torch
from driver import Driver
from harness import make_cache, match_length
from saving_driver import SavingDriver, batch_of, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from test_stress import check_states, end_one, random_prompt

from sglang_hybrid.adapter import forward_saves
from sglang_hybrid.adapter.explain import EvictedPlaces
from sglang_hybrid.adapter.forward_saves import ForwardSaves
from sglang_hybrid.adapter.guards import Guard, Guards
from sglang_hybrid.adapter.recorder import Recorder
from sglang_hybrid.adapter.saving_layers import scan_states
from sglang_hybrid.adapter.short_hits import ShortHit
from sglang_hybrid.adapter.stops import StopCopies
from sglang_hybrid.adapter.tree_view import TreeView
from sglang_hybrid.core.chunk_plan import ChunkPlan
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.forks import ForkIndex
from sglang_hybrid.core.live_tree import LiveTree
from sglang_hybrid.core.pages import PageChain
from sglang_hybrid.core.policies import Utility
from sglang_hybrid.core.sampling import DrawList
from sglang_hybrid.core.victims import VictimIndex

ORDER = [
    (Utility, "weight"),
    (Utility, "losses"),
    (VictimIndex, "put"),
    (VictimIndex, "victim"),
    (DrawList, "append"),
    (DrawList, "remove"),
    (LiveTree, "depth_of"),
    (LiveTree, "split"),
    (LiveTree, "add"),
    (LiveTree, "remove"),
    (LiveTree, "facts"),
    (LiveTree, "live_depth_above"),
    (TreeView, "_learn"),
    (TreeView, "_touch_all"),
    (TreeView, "_place"),
]
HISTORY = [
    (ForkIndex, "observe"),
    (ForkIndex, "deepest"),
    (PageChain, "extend"),
    (EvictedPlaces, "on_path"),
    (EvictedPlaces, "deepest"),
    (ShortHit, "missing"),
    (ModelCosts, "prefill_flops"),
]
SAVING = [
    (ChunkPlan, "add_row"),
    (ForwardSaves, "add_inside"),
    (ForwardSaves, "seal"),
    (StopCopies, "note"),
]


class Broken(Exception):
    pass


def break_after(monkeypatch, owner, name, calls=1):
    """Let ``owner.name`` raise from its ``calls``-th call on; returns the calls so far."""
    original, counted = getattr(owner, name), []

    def method(*args, **kwargs):
        counted.append(name)
        if len(counted) >= calls:
            raise Broken(f"{owner.__name__}.{name}")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, method)
    return counted


def named(value):
    return getattr(value, "__name__", str(value))


def serve_randomly(cache, driver, seed, steps=120):
    """Random requests in tiny pools, some of them side by side; every slot is checked."""
    rng, running, history = random.Random(seed), [], []
    for _ in range(steps):
        action = rng.random()
        if action < 0.5:
            prompt = random_prompt(rng, history)
            if len(running) < 3 and driver.has_room(len(prompt)):
                running.append(driver.start(prompt))
        elif running and action < 0.9:
            history = end_one(driver, rng, running, history, is_aborted=action < 0.6)
        elif action < 0.97:
            cache.evict(EvictParams(num_tokens=rng.randrange(60), mamba_num=rng.randrange(3)))
        cache.check_integrity()
        check_states(cache)
    while running:
        driver.abort(running.pop())


def empty(cache):
    cache.reset()
    cache.req_to_token_pool.clear()
    cache.token_to_kv_pool_allocator.clear()


def order_of_loss(cache, prompts):
    """Indices of ``prompts`` in the order in which they hit nothing, as states are evicted."""
    lost = []
    while len(lost) < len(prompts):
        cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        lost += [
            i
            for i, prompt in enumerate(prompts)
            if i not in lost and path_states(cache, prompt) == 0
        ]
    return lost


def path_states(cache, tokens):
    """States on the path of ``tokens``, found without touching it."""
    node, found, at = cache.tree_core.root_node, 0, 0
    while node is not None:
        below = [c for c in node.children.values() if c.key.token_ids[0] == tokens[at]]
        node = below[0] if below else None
        if node is not None:
            found += node.component_data[ComponentType.MAMBA].value is not None
            at += len(node.key)
            if at >= len(tokens):
                break
    return found


@pytest.mark.parametrize("calls", [1, 30])
@pytest.mark.parametrize(("owner", "name"), ORDER, ids=named)
def test_without_its_order_the_cache_evicts_as_sglang(monkeypatch, caplog, owner, name, calls):
    cache = make_cache(slots=8, tokens=900, rows=4)
    counted = break_after(monkeypatch, owner, name, calls)
    serve_randomly(cache, Driver(cache, chunk=32), calls, steps=200)
    assert len(counted) >= calls, "the traffic does not get there"
    order = cache.guards.order
    assert not order.is_on and order.error == f"Broken: {owner.__name__}.{name}"
    assert caplog.text.count("eviction order failed") == 1
    assert caplog.text.count("off until the server is restarted") == 1

    # Hits go on, and the least recently used state goes first.
    empty(cache)
    driver = Driver(cache)
    prompts = [list(range(start, start + 40)) for start in (1, 101, 201)]
    for prompt in prompts:
        driver.serve(prompt)
    assert driver.serve([*prompts[0], 7, 8, 99]) == 42
    assert order_of_loss(cache, [[*prompt, 7, 8, 99] for prompt in prompts]) == [1, 2, 0]
    cache.check_integrity()


@pytest.mark.parametrize("calls", [1, 20])
@pytest.mark.parametrize(("owner", "name"), HISTORY, ids=named)
def test_without_a_history_branch_points_are_kept(monkeypatch, owner, name, calls):
    cache = make_cache({"min_gain_tokens": 1, "ghost_forks": True}, slots=8, tokens=900, rows=4)
    counted = break_after(monkeypatch, owner, name, calls)
    driver = Driver(cache, chunk=32)
    serve_randomly(cache, driver, calls, steps=200)
    for start in range(5):  # pages are hashed from 64 tokens on
        driver.serve(range(900 * start, 900 * start + 130))
    assert len(counted) >= calls, "the traffic does not get there"
    history = cache.guards.history
    assert not history.is_on and history.error == f"Broken: {owner.__name__}.{name}"
    assert cache.guards.order.is_on or name == "prefill_flops"
    empty(cache)
    trunk = list(range(1, 101))
    driver = Driver(cache)
    assert [driver.serve([*trunk, 700 + i, *range(20)]) for i in range(4)][2:] == [100, 100]


def test_without_its_record_a_rank_plans_as_the_others(monkeypatch):
    """Only one rank records: its plans must stay those of the ranks that do not."""
    break_after(monkeypatch, Recorder, "add")
    cache = make_cache({"min_gain_tokens": 1}, slots=8)
    cache.recorder = Recorder(16, 64)
    driver = Driver(cache)
    for i in range(3):
        driver.serve([*range(1, 200), 700 + i, *range(100)])
    assert not cache.guards.lead.is_on and cache.guards.lead.failures == 1
    assert cache.guards.history.is_on and cache.wanted.forks is not None
    req = driver.start([*range(1, 200), 800, *range(100)])
    assert cache.wanted.forks.deepest(cache.wanted.pages_of(req), 1, 299) == 192
    driver.abort(req)


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer"])
@pytest.mark.parametrize("calls", [1, 9])
@pytest.mark.parametrize(("owner", "name"), SAVING, ids=named)
def test_without_saving_ends_of_sequences_are_kept(monkeypatch, strategy, owner, name, calls):
    if name == "note" and strategy == "no_buffer":
        pytest.skip("no step runs beyond a stop token")
    cache = saving_cache(slots=12, tokens=1500, rows=4, extra_buffer=strategy == "extra_buffer")
    counted = break_after(monkeypatch, owner, name, calls)
    driver = SavingDriver(cache, chunk=32)
    serve_randomly(cache, driver, calls, steps=200)
    assert len(counted) >= calls, "the traffic does not get there"
    guard = cache.guards.saving
    assert not guard.is_on and guard.failures == 3
    assert guard.error == f"Broken: {owner.__name__}.{name}"
    empty(cache)
    trunk = list(range(1, 101))
    for i in range(3):
        driver.serve([*trunk, 700 + i, *range(20)])
    assert cache.counters.unwritten_checkpoints >= 0
    talk = [*trunk, 700, *range(20), 7, 8]
    assert driver.serve([*talk, 9, 10, 11]) == len(talk)


def test_a_state_that_cannot_be_copied_is_not_kept(monkeypatch):
    """Of a running request: its slot goes back, and the next copy may succeed."""
    cache = make_cache({"prompt_end": "always"}, slots=8)
    driver, pool = Driver(cache), cache.req_to_token_pool.mamba_pool
    copy_from = pool.copy_from
    monkeypatch.setattr(pool, "copy_from", lambda *_: (_ for _ in ()).throw(Broken("copy")))
    req = driver.start(range(1, 60))
    assert cache.guards.saving.failures == 1 and cache.guards.saving.is_on
    monkeypatch.setattr(pool, "copy_from", copy_from)
    driver.finish(req, [7, 8])
    assert driver.serve([*range(1, 60), 7, 9]) == 60
    assert match_length(cache, [*range(1, 60), 7, 9]) > 0
    check_states(cache)


def test_a_state_that_is_deeper_than_its_path_is_dropped():
    cache = make_cache(slots=8)
    driver = Driver(cache)
    driver.serve(range(1, 60))
    component = cache.components[ComponentType.MAMBA]
    (node,) = cache.tree_core.root_node.children.values()
    assert component._node_at(node, 10_000, []) is None
    assert cache.guards.saving.failures == 1
    cache.check_integrity()


@pytest.mark.parametrize("part", ["order", "saving", "history", "tuning", "lead"])
def test_strict_raises(part):
    guard = getattr(Guards.of(is_strict=True, ranks=1), part)
    with pytest.raises(Broken), guard:
        raise Broken


def test_a_failure_on_the_device_of_one_rank_ends_the_server():
    """The others do not know of it, and would go on with another tree."""
    gave_up = []
    guard = Guard("saving", "", tolerated=2, ranks=2)
    with pytest.raises(Broken) as caught, guard.on_device(lambda: gave_up.append(1)):
        raise Broken
    assert "one of 2 ranks" in caught.value.__notes__[0] and gave_up
    alone = Guard("saving", "", tolerated=2)
    for _ in range(2):
        with alone.on_device(lambda: gave_up.append(1)):
            raise Broken
    assert alone.is_on and alone.failures == 2 and len(gave_up) == 3


def test_what_ends_a_process_passes():
    guard = Guard("saving", "")
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt
    assert guard.is_on and not guard.failures


def test_a_forward_whose_saves_fail_goes_on(monkeypatch):
    """Its states are dropped, that at its end too, and nothing is handed over unwritten."""
    cache = saving_cache(slots=12, tokens=1500, rows=4, extra_buffer=True)
    driver = SavingDriver(cache)
    monkeypatch.setattr(
        forward_saves, "copy_states", lambda *_: (_ for _ in ()).throw(Broken("copy"))
    )

    def forward(task):
        return forward_saves.forward(lambda *_: "logits", None, SimpleNamespace(hybrid_task=task))

    # What `ForwardBatch` would carry of a batch with one prompt.
    req = driver.admit(range(1, 80))
    driver._reserve(req, 0, 79)
    req.extend_end = 79
    cache.saver.track_tail(req)
    batch = batch_of([req])
    cache.saver.prepare(batch)
    saves = batch.hybrid_saves
    assert forward(forward_saves.Task(saves, None, 0)) == "logits"
    assert cache.guards.saving.failures == 1
    assert not saves.ends_written and forward_saves.active() is None
    cache.checkpoint(req, up_to=79)
    assert cache.counters.unwritten_checkpoints == 1
    assert match_length(cache, [*range(1, 80), 5]) == 0
    driver.abort(req)
    cache.check_integrity()


def test_a_scan_whose_states_fail_goes_on():
    cache = saving_cache(slots=12, tokens=1500, rows=4)
    saves = ForwardSaves(
        cache.req_to_token_pool, ChunkPlan(chunk_tokens=64, window_tokens=3), cache.guards.saving
    )
    saves.turns = (torch.tensor([0]), torch.tensor([1]))
    forward_saves._Active.saves = saves

    def scan(*_):
        raise Broken("scan")

    chunk_states = torch.ones(1, 2)
    args = (*[None] * 4, chunk_states, *[None] * 2, torch.tensor([0, 0]), torch.tensor([3, 5]))
    assert scan_states(scan, *args) is chunk_states
    assert forward_saves.active() is None and cache.guards.saving.failures == 1

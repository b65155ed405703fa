"""What planning a forward's saves costs the scheduler, beside the forward itself.

    python -m pytest bench/micro/test_planning_cost.py -s

`Saver.prepare` runs once per prefill batch, on the scheduler's thread, and takes a slot for
every checkpoint. Nothing has to be evicted here for one (test_tree_operations.py measures that).
Counted is the thread's time.
"""

import statistics
import time

import numpy as np
import pytest
import torch

from bench.micro.prefills import Prefills
from sglang_hybrid.model.make_model import make_small_model

TOKENS, SHARED, TOKEN_IDS, ROUNDS = 250, 200, 256, 15
MAX_SHARE = 0.01


@pytest.fixture(scope="module")
def prefills(tmp_path_factory):
    loaded = Prefills(make_small_model(tmp_path_factory.mktemp("model")))
    yield loaded
    loaded.close()


@pytest.fixture
def planning(prefills, monkeypatch):
    """Seconds of every call of `Saver.prepare`."""
    spent, prepare = [], prefills.cache.saver.prepare

    def timed(batch):
        start = time.thread_time()
        prepare(batch)
        spent.append(time.thread_time() - start)

    monkeypatch.setattr(prefills.cache.saver, "prepare", timed)
    return spent


def batches(requests, count):
    """Prompts of a batch and where each wants ``count`` checkpoints, at tokens of its own."""
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS + 1):
        prompts = rng.integers(0, TOKEN_IDS, (requests, TOKENS))
        depths = [rng.choice(np.arange(1, TOKENS), count, replace=False) for _ in prompts]
        yield prompts.tolist(), [each.tolist() for each in depths]


def alike(requests, is_shared):
    """As `batches`, all at one token; of one prefix, or each of another."""
    for prompts, _ in batches(requests, 0):
        if is_shared:
            prompts = [prompts[0][:SHARED] + each[SHARED:] for each in prompts]
        yield prompts, [[SHARED]] * requests


@torch.inference_mode()
def planned(prefills, planning, cases):
    """Microseconds of planning a batch, the median over ``cases``."""
    planning.clear()
    for case in cases:
        batch = prefills.batch(*case)
        batch.prepare_for_extend()
        prefills.release(batch)
    return 1e6 * statistics.median(planning[1:])


@torch.inference_mode()
def forward_us(prefills, requests):
    """Microseconds of the fastest of a few forwards that save nothing inside."""
    times = []
    for prompts, depths in list(batches(requests, 0))[:3]:
        batch = prefills.batch(prompts, depths)
        batch.prepare_for_extend()
        start = time.thread_time()
        prefills.forward(batch)
        times.append(time.thread_time() - start)
        prefills.release(batch)
    return 1e6 * min(times)


@pytest.mark.parametrize("requests", [1, 8, 64])
def test_planning_is_small_beside_a_prefill(prefills, planning, requests):
    forward = forward_us(prefills, requests)
    print(f"\n{requests} x {TOKENS} tokens, forward {forward / 1e3:.0f} ms; us per request")
    cases = {f"{count} places": batches(requests, count) for count in range(3)}
    if requests > 1:
        cases["1 place, the same for all"] = alike(requests, is_shared=True)
        cases["1 place, equally deep"] = alike(requests, is_shared=False)
    for name, case in cases.items():
        cost = planned(prefills, planning, case)
        print(f"  {name:26} {cost / requests:6.1f}   {100 * cost / forward:.3f} % of the forward")
        assert cost < MAX_SHARE * forward

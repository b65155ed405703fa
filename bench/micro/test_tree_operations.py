"""What the tree's operations cost: SGLang's Rust core, its Python core, and ours.

    python -m pytest bench/micro/test_tree_operations.py -s

All caches live in one process and take turns in every round, so that other load on the
machine hits them alike; counted is the thread's time. pytest-benchmark's own columns are of
ours with the default policy; those of all are in the table that is printed and, in microseconds,
in ``extra_info`` of its JSON.
"""

import itertools
import random
import statistics
import time

import pytest
import torch
from rich.console import Console
from rich.table import Table

from bench.micro.trees import OURS, PYTHON, RUST, make_full

pytestmark = pytest.mark.benchmark(timer=time.thread_time)

NODES = (100, 1_000, 10_000)
MAX_RATIO = 1.2
"""Of a match and an insertion, to the Python core."""
MAX_CHOICE_US = 50
DEFAULT = OURS[0]
CHAIN, LEAVES = 4, 1
"""Turns of a conversation: its states in a row, or leaves alone."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def filled():
    """Caches by name; those of the last number of nodes and turns are kept."""
    made = {}

    def get(nodes, turns):
        if (nodes, turns) not in made:
            made.clear()
            made[nodes, turns] = {n: make_full(n, nodes, turns) for n in (RUST, PYTHON, *OURS)}
        return made[nodes, turns]

    return get


def medians(benchmark, caches, prepare, rounds) -> dict[str, float]:
    """Medians in microseconds by cache, all of which take turns.

    Args:
        prepare: ``prepare(cache, round)`` is the operation that is timed, without arguments.
    """
    spent = {name: [] for name in caches if name != DEFAULT}
    rounds_done = itertools.count()

    def others():
        number = next(rounds_done)
        for name, each in spent.items():
            operation = prepare(caches[name], number)
            start = time.thread_time()
            operation()
            each.append(time.thread_time() - start)
        for cache in caches.values():
            cache.refill()
        return (prepare(caches[DEFAULT], number),), {}

    benchmark.pedantic(lambda operation: operation(), setup=others, rounds=rounds)
    spent[DEFAULT] = benchmark.stats.stats.data
    found = {name: 1e6 * statistics.median(each) for name, each in spent.items()}
    base = found.get(PYTHON)
    table = Table("us", "median", "p99", f"to {PYTHON}", title=benchmark.name)
    for name, each in spent.items():
        p99 = 1e6 * statistics.quantiles(each, n=100)[98]
        ratio = f"{found[name] / base:.2f}" if base else ""
        table.add_row(name, f"{found[name]:.0f}", f"{p99:.0f}", ratio)
    Console().print(table)
    benchmark.extra_info.update(found)
    return found


@pytest.mark.parametrize("nodes", NODES)
def test_match(benchmark, filled, nodes):
    caches, rng = filled(nodes, CHAIN), random.Random(0)
    asked = [rng.randrange(nodes // CHAIN) for _ in range(200)]
    found = medians(benchmark, caches, lambda cache, number: cache.match(asked[number]), 200)
    assert all(found[name] <= MAX_RATIO * found[PYTHON] for name in OURS)


@pytest.mark.parametrize("nodes", NODES)
def test_insert(benchmark, filled, nodes):
    found = medians(benchmark, filled(nodes, CHAIN), lambda cache, _: cache.insertion(), 200)
    assert all(found[name] <= MAX_RATIO * found[PYTHON] for name in OURS)


@pytest.mark.parametrize("nodes", NODES)
def test_evict_one_state(benchmark, filled, nodes):
    one = {"mamba_num": 1}
    found = medians(benchmark, filled(nodes, CHAIN), lambda cache, _: cache.eviction(**one), 200)
    assert all(found[name] <= MAX_RATIO * found[PYTHON] for name in OURS)


@pytest.mark.parametrize("nodes", NODES)
def test_choose_a_state(benchmark, filled, nodes):
    """The part of an eviction that is the policy's: after another, and what was inserted since."""
    caches = {name: filled(nodes, CHAIN)[name] for name in OURS}

    def choice(cache, _):
        cache.eviction(mamba_num=1)()
        cache.refill()
        return cache.choice()

    assert all(each < MAX_CHOICE_US for each in medians(benchmark, caches, choice, 200).values())


@pytest.mark.parametrize("nodes", NODES)
def test_evict_4096_tokens(benchmark, filled, nodes):
    some = {"num_tokens": 4096}
    found = medians(benchmark, filled(nodes, LEAVES), lambda cache, _: cache.eviction(**some), 40)
    if nodes == max(NODES):
        assert all(found[name] <= found[RUST] for name in OURS)

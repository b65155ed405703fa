"""Checks that every slot has one owner and every state is where it was taken."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.adapter.saving import saved_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_hybrid.adapter.cache import HybridMarconiCache

FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


def check_integrity(cache: HybridMarconiCache, requests: list[Req]) -> None:
    """Raise AssertionError naming the first violation.

    Args:
        requests: all requests that may hold state slots.

    Reads device memory; for tests and ``strict`` mode only.
    """
    cache.sanity_check()
    owners: dict[int, str] = {}
    nodes = _nodes(cache.tree_core.root_node)
    for node in nodes:
        value = node.component_data[MAMBA].value
        if value is not None:
            _claim(owners, value.tolist(), f"node {node.id}")
    for req in requests:
        if not req.finished():
            _claim(owners, _slots_of(req), f"request {req.rid}")
    _check_slots(cache, owners)
    depths = _depths(cache.tree_core.root_node, nodes)
    cache.view.settle()  # which may be what turns the order off
    if cache.guards.order.is_on:
        _check_checkpoints(cache, nodes, depths)
    if cache.host.is_on and cache.guards.order.is_on:
        _check_host(cache, nodes, depths)


def _nodes(root) -> list:
    nodes, stack = [], list(root.children.values())
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children.values())
    return nodes


def _slots_of(req: Req) -> list[int]:
    slots = [int(req.kv.mamba_pool_idx)] if req.kv.holds_mamba else []
    if req.kv.mamba_ping_pong_track_buffer is not None:
        slots += [slot for slot in req.kv.mamba_ping_pong_track_buffer.tolist() if slot >= 0]
    return slots + [int(saved.slot) for saved in saved_of(req)]


def _claim(owners: dict[int, str], slots: list[int], owner: str) -> None:
    for slot in slots:
        assert slot not in owners, f"slot {slot} belongs to {owners[slot]} and to {owner}"
        owners[slot] = owner


def _check_slots(cache: HybridMarconiCache, owners: dict[int, str]) -> None:
    allocator = cache.req_to_token_pool.mamba_allocator
    if cache.shared is None:
        free, total = allocator.free_slots.tolist(), allocator.size
    else:
        free, total = cache.shared.state_slots()
        violations = cache.shared.violations(list(owners))
        assert not violations, f"shared memory: {violations}"
    assert len(free) == len(set(free)), f"a slot is twice in the free list: {sorted(free)}"
    both = set(free) & owners.keys()
    assert not both, f"slot {min(both)} is free and belongs to {owners[min(both)]}"
    in_tree = sum(owner.startswith("node") for owner in owners.values())
    assert cache.mamba_evictable_size() + cache.mamba_protected_size() == in_tree, (
        f"the tree owns {in_tree} slots, its sizes say "
        f"{cache.mamba_evictable_size()} + {cache.mamba_protected_size()}"
    )
    if allocator._alloc_iter is None:  # else the running scheduling pass holds some
        lost = total - len(free) - len(owners)
        assert lost == 0, f"{lost} slots are neither free nor owned"


def _depths(root, nodes: list) -> dict[int, int]:
    """Tokens from the root to the end of each node."""
    depths = {root.id: 0}
    for node in nodes:
        path = []
        while node.id not in depths:
            path.append(node)
            node = node.parent
        for below in reversed(path):
            depths[below.id] = depths[below.parent.id] + len(below.key)
    return depths


def _check_host(cache: HybridMarconiCache, nodes: list, depths: dict[int, int]) -> None:
    kept = cache.host.checkpoints
    for component, pool in ((FULL, PoolName.KV), (MAMBA, PoolName.MAMBA)):
        held: list[int] = []
        for node in nodes:
            value = node.component_data[component].host_value
            held += [] if value is None else value.tolist()
        assert len(held) == len(set(held)), f"two nodes have the same {pool} on the host"
        host = cache.host_pool_group.get_pool(pool)
        used = host.size - host.available_size()
        assert used == len(held), f"{used} of {pool} on the host are taken, nodes have {len(held)}"
    on_host = {
        node.id
        for node in nodes
        if node.component_data[MAMBA].value is None
        and node.component_data[MAMBA].host_value is not None
    }
    assert kept.keys() == on_host, (
        f"checkpoints kept without a state on the host {kept.keys() - on_host}, "
        f"states on the host without a checkpoint {on_host - kept.keys()}"
    )
    for node_id, checkpoint in kept.items():
        assert checkpoint.depth == depths[node_id], (
            f"node {node_id} ends at token {depths[node_id]}, "
            f"its state on the host was taken at {checkpoint.depth}"
        )


def _check_checkpoints(cache: HybridMarconiCache, nodes: list, depths: dict[int, int]) -> None:
    view = cache.view
    with_state = {n.id for n in nodes if n.component_data[MAMBA].value is not None}
    assert view.checkpoints.keys() == with_state, (
        f"checkpoints without a state {view.checkpoints.keys() - with_state}, "
        f"states without a checkpoint {with_state - view.checkpoints.keys()}"
    )
    kinds = Counter(checkpoint.kind for checkpoint in view.checkpoints.values())
    assert {kind: n for kind, n in view.live.items() if n} == kinds, (
        f"live checkpoints by kind are {kinds}, counted were {view.live}"
    )
    for node_id, checkpoint in view.checkpoints.items():
        assert checkpoint.depth == depths[node_id], (
            f"node {node_id} ends at token {depths[node_id]}, "
            f"its state was taken at {checkpoint.depth}"
        )
    live_children: dict[int, int] = {}
    for node in sorted(nodes, key=lambda n: -depths[n.id]):
        if node.id in with_state or node.id in live_children:
            above = node.parent.id
            live_children[above] = live_children.get(above, 0) + 1
    for node in nodes:
        counted, found = view.tree.live_children(node), live_children.get(node.id, 0)
        assert counted == found, f"node {node.id} has {found} live children, not {counted}"
    drawn = view.drawn_from
    assert len(drawn) == len(with_state) and set(drawn) == with_state, (
        "the list that candidates are drawn from differs from the states"
    )
    unlocked = {n.id for n in nodes if n.id in with_state and not n.component_data[MAMBA].lock_ref}
    assert view.states.keys() == unlocked, "state victims differ from unlocked states"
    leaves = {n.id for n in cache.tree_core.evictable_device_leaves}
    assert view.leaves.keys() == leaves, "leaf victims differ from evictable leaves"
    stale = view.stale()
    assert not stale, f"victims whose place is out of date: {stale}"

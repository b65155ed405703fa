"""What must hold after every step: owners and contents of all slots, and the model's bounds."""

from contents import kv_differs, namespace_of, prefix_digests, states_that_differ
from sglang.srt.mem_cache.unified_cache.components import ComponentType

FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


def check_all(scheduler, model):
    """Raise AssertionError naming the first violation. O(tree)."""
    kv, states = check_slots(scheduler)
    check_model(scheduler.cache, model, set(kv), set(states))


def check_slots(scheduler):
    """All of it but the model; returns what is in the tree, see `read_tree`."""
    scheduler.cache.check_integrity()
    for part, status in scheduler.cache.guards.status().items():
        assert not status["failures"], f"{part}: {status['error']}"
    kv, states = read_tree(scheduler.cache)
    _check_kv_slots(scheduler, kv)
    _check_state_slots(scheduler, states)
    _check_running(scheduler)
    return kv, states


def read_tree(cache):
    """KV and state slots of the tree, each by the digest of the sequence that it ends.

    Of KV only the last token of each page is listed, by its slot and those before it.
    """
    kv, states, page = {}, {}, cache.page_size
    stack = [(child, []) for child in cache.tree_core.root_node.children.values()]
    while stack:
        node, above = stack.pop()
        tokens = above + list(node.key.token_ids[: len(node.key)])
        digests = prefix_digests(tokens, namespace_of(node.key))[len(above) + 1 :]
        slots = node.component_data[FULL].value
        assert len(slots) == len(digests) and not len(digests) % page
        assert not kv_differs(cache.token_to_kv_pool_allocator, slots, digests), (
            f"node {node.id} holds KV of other tokens"
        )
        for end in range(page, len(digests) + 1, page):
            kv[int(digests[end - 1])] = slots[end - page : end].tolist()
        state = node.component_data[MAMBA].value
        if state is not None:
            states[int(digests[-1])] = int(state)
        stack.extend((child, tokens) for child in node.children.values())
    wrong = states_that_differ(cache.req_to_token_pool, list(states.values()), list(states))
    assert not wrong, f"slots {[list(states.values())[i] for i in wrong]} hold other states"
    return kv, states


def check_model(cache, model, kv, states):
    """The tree holds nothing that it may not, and all that it has to."""
    model.notice_pressure()
    assert kv <= model.kv, f"KV of {len(kv - model.kv)} pages that nobody computed"
    extra = states - model.states
    assert not extra, f"{len(extra)} states where none can be, of {_places(cache)}"
    if model.is_exact:
        assert model.kv_must <= kv, f"KV of {len(model.kv_must - kv)} pages is missing"
        missing = model.states_must - states
        assert not missing, f"{len(missing)} states are missing beside {_places(cache)}"


def _places(cache):
    return sorted((c.depth, c.kind.name) for c in cache.view.checkpoints.values())


def _check_kv_slots(scheduler, kv):
    cache, page = scheduler.cache, scheduler.cache.page_size
    allocator, table = cache.token_to_kv_pool_allocator, cache.req_to_token_pool.req_to_token
    owned = [slot for slots in kv.values() for slot in slots]
    held = 0
    for req in scheduler.live:
        if req.kv.holds_kv:
            first, end = req.kv.cache_protected_len, req.kv.kv_allocated_len
            slots = table[req.kv.req_pool_idx, first:end].tolist()
            owned += slots
            held += -(-end // page) * page - first
    assert len(owned) == len(set(owned)), "a KV slot has two owners"
    free = free_kv_pages(cache)
    assert len(free) == len(set(free)), "KV is twice in the free list"
    both = {slot // page for slot in owned} & set(free)
    assert not both, f"KV pages {sorted(both)} are free and owned"
    sizes = cache.full_evictable_size(), cache.full_protected_size()
    assert sum(sizes) == sum(map(len, kv.values())), f"the tree's KV is not {sizes}"
    total = allocator.available_size() + sum(sizes) + held
    assert total == allocator.size, f"{allocator.size - total} KV slots are lost"


def _check_state_slots(scheduler, states):
    cache, pool = scheduler.cache, scheduler.cache.req_to_token_pool
    owned = list(states.values())
    for req in scheduler.live:
        if req.kv.holds_mamba:
            owned.append(int(req.kv.mamba_pool_idx))
        buffer = req.kv.mamba_ping_pong_track_buffer
        if buffer is not None:
            owned += [slot for slot in buffer.tolist() if slot >= 0]
        owned += [int(saved.slot) for saved in getattr(req, "hybrid_saved", [])]
    assert len(owned) == len(set(owned)), "a state slot has two owners"
    free, slots = free_state_slots(pool)
    assert sorted(owned + free) == list(slots), "state slots are lost, or free and owned"
    in_tree = cache.mamba_evictable_size() + cache.mamba_protected_size()
    assert in_tree == len(states), f"{len(states)} states in the tree, not {in_tree}"


def free_kv_pages(cache):
    """Pages that no token has; where memory is unified their ids are virtual."""
    allocator = cache.token_to_kv_pool_allocator
    if cache.shared is not None:
        return allocator.full_attn_allocator.free_virtual_ids.tolist()
    return allocator.get_all_free_pages().tolist()


def free_state_slots(pool):
    """State slots that are free, and all that there are."""
    allocator = pool.mamba_allocator
    unified = getattr(allocator, "_multi_ended_allocator", None)
    if unified is None:
        return allocator.free_slots.tolist(), range(1, allocator.size + 1)
    return unified.free_virtual_ids.tolist(), range(unified.min_page_index, unified.num_pages)


def _check_running(scheduler):
    for req in scheduler.live:
        if req.kv.holds_kv and not req.finished() and req.kv.kv_committed_len:
            depth = req.kv.kv_committed_len
            assert scheduler.has_state(req, depth), f"{req.rid} lost its state of {depth} tokens"


def check_drained(scheduler):
    """With no request left, both pools can be emptied by eviction."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    cache = scheduler.cache
    assert not cache.full_protected_size() and not cache.mamba_protected_size()
    cache.evict(EvictParams(num_tokens=1 << 30, mamba_num=1 << 30))
    cache.check_integrity()
    assert not cache.view.checkpoints and not cache.full_evictable_size()
    assert not cache.tree_core.root_node.children
    for pool in (cache.token_to_kv_pool_allocator, cache.req_to_token_pool.mamba_allocator):
        assert pool.available_size() == pool.size
    rows = cache.req_to_token_pool
    assert rows.available_size() == rows.size

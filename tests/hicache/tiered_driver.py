"""Drives a cache with a host tier: real host pools, and what the scheduler does about them."""

from contents import (
    holds_rows,
    kv_differs,
    kv_rows_differ,
    namespace_of,
    prefix_digests,
    states_that_differ,
)
from saving_driver import SavingDriver, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from sglang_hybrid.cpu.patches import apply_host_tier

FULL, MAMBA = ComponentType.FULL, ComponentType.MAMBA


def tiered_cache(config=None, *, policy="write_through", ratio=4.0, **options):
    """A cache whose host pools are ``ratio`` times as large as those of the device."""
    apply_host_tier()
    return saving_cache(
        config,
        enable_hierarchical_cache=True,
        hicache_ratio=ratio,
        hicache_write_policy=policy,
        hicache_io_backend="direct",
        hicache_mem_layout="page_first_direct",
        **options,
    )


class TieredDriver(SavingDriver):
    """Serves requests on a cache with a host tier.

    Attributes:
        polls: whether the scheduler's steps between requests submit copies to the host and
            take note of those that have run; until then their nodes are locked.
    """

    def __init__(self, cache, chunk=1 << 14):
        super().__init__(cache, chunk)
        self.polls = True

    def poll(self):
        """A step of the scheduler."""
        if self.polls:
            self.cache.flush_pending_backups()
            self.cache.check_hicache_events()
            self.cache.check_integrity()

    def forward(self, req, end):
        self.poll()
        super().forward(req, end)

    def finish(self, req, output, **options):
        super().finish(req, output, **options)
        self.poll()

    def abort(self, req):
        super().abort(req)
        self.poll()

    def reload(self, req):
        """Bring ``req``'s hit on the host back, as the scheduler does when it is admitted."""
        cache, needed = self.cache, int(not req.kv.holds_mamba)
        if cache.enable_mamba_extra_buffer:
            needed += cache.req_to_token_pool.mamba_initial_tracking_slots
        last, best = req.last_node, req.best_match_node
        pinned = cache.inc_host_lock_ref(best).to_dec_params()
        locks = [cache.lock(last), cache.lock(best)]
        cache.host.spare_slots = cache.free_state_slots() - needed
        promised = req.host_hit_length
        params = InitLoadBackParams(best_match_node=best, host_hit_length=promised, req=req)
        loaded, req.last_node = cache.init_load_back(params)
        assert loaded in (0, promised)
        req.prefix_len += loaded
        req.kv.cache_protected_len = req.prefix_len
        for lock in locks:
            cache.unlock(lock)
        cache.dec_host_lock_ref(best, pinned)
        cache.ready_to_load_host_cache()

    def match(self, req):
        super().match(req)
        if req.needs_host_load_back():
            self.reload(req)


def check_contents(cache):
    """KV and states of every node, on the device and on the host, are those of its tokens."""
    cache.flush_pending_backups()
    allocator, pool = cache.token_to_kv_pool_allocator, cache.req_to_token_pool
    host_kv = cache.host_pool_group.get_pool(PoolName.KV)
    host_states = cache.host_pool_group.get_pool(PoolName.MAMBA).temporal_buffer
    below = [(node, []) for node in cache.tree_core.root_node.children.values()]
    while below:
        node, above = below.pop()
        tokens = [*above, *node.key.token_ids[: len(node.key)]]
        below += [(child, tokens) for child in node.children.values()]
        digests = prefix_digests(tokens, namespace_of(node.key))
        kv, state = node.component_data[FULL], node.component_data[MAMBA]
        of_kv, of_state = digests[len(above) + 1 :], int(digests[-1])
        if kv.value is not None:
            assert not kv_differs(allocator, kv.value, of_kv)
        if kv.host_value is not None:
            at, size = kv.host_value, host_kv.page_size
            rows = [
                buffer[at // size, :, at % size] for buffer in (host_kv.k_buffer, host_kv.v_buffer)
            ]
            assert not kv_rows_differ(rows, of_kv)
        if state.value is not None:
            assert not states_that_differ(pool, state.value.tolist(), [of_state])
        if state.host_value is not None:
            assert holds_rows(host_states[state.host_value][0], of_state)


def states_on_host(cache):
    """Depths of the states of which the host has a copy, on the device or not."""
    found, below = [], list(cache.tree_core.root_node.children.values())
    while below:
        node = below.pop()
        below += node.children.values()
        if node.component_data[MAMBA].host_value is not None:
            found.append(cache.view.depth_of(node))
    return sorted(found)

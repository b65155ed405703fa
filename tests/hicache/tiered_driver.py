"""Drives a cache with a host tier: real host pools, and what the scheduler does about them.

Forwards write the digest of a prefix not only to the state behind it, but also to the KV
of its last token: what comes back from the host at another place is seen.
"""

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


def digests(tokens, start=0):
    """`harness.signature` of every prefix of ``tokens``, a digest ``start`` before them."""
    found, digest = [], int(start)
    for token in tokens:
        digest = (digest * 31 + token + 1) % 251
        found.append(float(digest))
    return found


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
        for lock in locks:
            cache.unlock(lock)
        cache.dec_host_lock_ref(best, pinned)
        cache.ready_to_load_host_cache()

    def _admit(self, req):
        if req.needs_host_load_back():
            self.reload(req)
        if req.prefix_len and req.kv.mamba_cow_src_index is None:
            assert self.state_of(req) == self._digest(req, req.prefix_len)
        super()._admit(req)

    @staticmethod
    def _digest(req, length):
        return digests(req.full_untruncated_fill_ids[:length])[-1]

    def _reserve(self, req, start, end):
        super()._reserve(req, start, end)
        pool = self.cache.req_to_token_pool
        slots = pool.req_to_token[req.kv.req_pool_idx, start:end]
        written = digests(req.full_untruncated_fill_ids[:end])[start:]
        for buffer in kv_buffers(self.cache):
            for slot, digest in zip(slots.tolist(), written, strict=False):
                buffer[slot] = digest


def kv_buffers(cache):
    pool = cache.token_to_kv_pool_allocator.get_kvcache().full_kv_pool
    return [*pool.k_buffer, *pool.v_buffer]


def check_contents(cache):
    """KV and states of every node, on the device and on the host, are those of its tokens."""
    cache.flush_pending_backups()
    states = cache.req_to_token_pool.mamba_pool.mamba_cache.temporal
    host_kv = cache.host_pool_group.get_pool(PoolName.KV)
    host_states = cache.host_pool_group.get_pool(PoolName.MAMBA).temporal_buffer
    below = [(node, 0) for node in cache.tree_core.root_node.children.values()]
    while below:
        node, start = below.pop()
        expected = digests(node.key.token_ids[: len(node.key)], start)
        below += [(child, expected[-1]) for child in node.children.values()]
        kv, state = node.component_data[FULL], node.component_data[MAMBA]
        if kv.value is not None:
            for buffer in kv_buffers(cache):
                assert buffer[kv.value][:, 0, 0].tolist() == expected
        if kv.host_value is not None:
            size = host_kv.page_size
            for buffer in (host_kv.k_buffer, host_kv.v_buffer):
                rows = buffer[kv.host_value // size, :, kv.host_value % size]
                assert rows[:, 0, 0, 0].tolist() == expected
        if state.value is not None:
            assert (states[:, state.value] == expected[-1]).all()
        if state.host_value is not None:
            assert (host_states[state.host_value] == expected[-1]).all()


def states_on_host(cache):
    """Depths of the states of which the host has a copy, on the device or not."""
    found, below = [], list(cache.tree_core.root_node.children.values())
    while below:
        node = below.pop()
        below += node.children.values()
        if node.component_data[MAMBA].host_value is not None:
            found.append(cache.view.depth_of(node))
    return sorted(found)

"""The cache that `--cache hybrid-marconi` serves from."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_hybrid.adapter.binding import bind
from sglang_hybrid.adapter.counters import Counters
from sglang_hybrid.adapter.explain import Explainer
from sglang_hybrid.adapter.full import HybridFullComponent
from sglang_hybrid.adapter.guards import Guards
from sglang_hybrid.adapter.host_tier import HostTier, hit_of
from sglang_hybrid.adapter.integrity import check_integrity
from sglang_hybrid.adapter.mamba import HybridMambaComponent
from sglang_hybrid.adapter.metric_table import Snapshot
from sglang_hybrid.adapter.saving import Family, Saver
from sglang_hybrid.adapter.shared_memory import SharedMemory
from sglang_hybrid.adapter.tiered import TieredCache
from sglang_hybrid.adapter.timing import SchedulerTimes
from sglang_hybrid.adapter.tree_view import TreeView
from sglang_hybrid.adapter.wanted import WantedCheckpoints, known_pages
from sglang_hybrid.config import CacheConfig
from sglang_hybrid.core.checkpoints import Kind
from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.hit_density import DensityTable
from sglang_hybrid.core.policies import Policy
from sglang_hybrid.core.policy_names import make_policy

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import MatchResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from torch import Tensor

    from sglang_hybrid.adapter.recorder import Recorder
    from sglang_hybrid.adapter.tuning import Tuning

COMPONENTS = {
    ComponentType.FULL: HybridFullComponent,
    ComponentType.MAMBA: HybridMambaComponent,
}


class HybridMarconiCache(TieredCache, UnifiedRadixCache):
    """`UnifiedRadixCache` with Marconi's admission and scored eviction.

    Args:
        params: as SGLang builds them; the FULL and MAMBA components are replaced.
        config: the parsed ``--cache-config``.
        costs: bytes and FLOPs of the loaded model on this rank.
        family: how the model's prefill returns states inside a row; None where it cannot.
        ranks: tensor-parallel ranks of the replica.
    """

    def __init__(
        self,
        params: CacheInitParams,
        config: CacheConfig,
        costs: ModelCosts,
        family: Family | None = None,
        ranks: int = 1,
    ):
        # The base class resets the cache while it is built: ours must exist before.
        self.config = config
        self.guards = Guards.of(is_strict=config.strict, ranks=ranks)
        self._locks_kv_only = False
        allocator = params.token_to_kv_pool_allocator
        is_shared = allocator.mamba_full_cache_donor() is not None
        self.shared = SharedMemory(self, allocator) if is_shared else None
        self.saver: Saver | None = None
        if config.branch_checkpoint != "chunk":
            cuts = family is None or config.branch_checkpoint == "split"
            self.saver = Saver(self, params, family, cuts=cuts)
        self.counters = Counters()
        self.host = HostTier(self)
        self.explainer = Explainer(self, self.guards.history)
        self.times: SchedulerTimes | None = None  # measured where metrics are on
        self.wanted = WantedCheckpoints(config, self.guards.history)
        self.recorder: Recorder | None = None
        self.tuning: Tuning | None = None
        self.takes_first_victims = True
        first_victims = {Kind.CHUNK}
        if config.prompt_end == "auto":
            first_victims.add(Kind.PROMPT_END)
        self._first_victims = frozenset(first_victims)
        self.view = TreeView(
            costs,
            make_policy(config.start_policy, config.effective_alpha),
            config.bucket_width,
            self._first_victims,
            self.guards.order,
        )
        # Requests that may hold state slots; only `check_integrity` reads it.
        self._holders: weakref.WeakValueDictionary[int, Req] = weakref.WeakValueDictionary()
        params.component_registry_override = {
            **(params.component_registry_override or {}),
            **COMPONENTS,
        }
        super().__init__(params)

    def measure(self) -> None:
        """Measure from now on what the cache's steps cost the scheduler."""
        self.times = SchedulerTimes()
        self.times.watch_cache(self, self.components[ComponentType.MAMBA])

    def bind(self, scheduler: Any) -> None:
        """``scheduler``, which built this cache, is ready to receive requests."""
        bind(self, scheduler)

    def reset(self) -> None:
        super().reset()
        self.view.tree_core = self.tree_core
        self.view.clear()
        self.host.clear()
        self.wanted.clear()
        self.explainer.places.clear()
        if self.recorder is not None:
            self.recorder.clear()
        if self.tuning is not None:
            self.tuning.reset()

    # ---- what the scheduler's prefill path tells ----

    def on_admitted(self, req: Req) -> None:
        """``req`` was admitted for prefill: one sighting, however often it was matched."""
        self.view.tick()
        if self.tuning is not None:
            self.tuning.advance(self.view.clock)
        self._holders[id(req)] = req
        req.hybrid_prefill_target = len(req.full_untruncated_fill_ids)
        with self.guards.history:
            self._count_hit(req)
        if req.prefix_len > 0:
            self.view.consume(self.tree_core.node_by_id(req.last_node))
        if not hasattr(req, "hybrid_hit"):
            req.hybrid_hit = req.prefix_len
            req.hybrid_turn = self.wanted.turn_of(req)
        self.wanted.observe_prompt(req)

    def _count_hit(self, req: Req) -> None:
        counters, costs, hit = self.counters, self.view.costs, req.prefix_len
        short = self.explainer.admitted(req, known_pages(req))
        counters.short.count(short)
        counters.requests += 1
        counters.prompt_tokens += short.prompt
        counters.hit_tokens += hit
        counters.lost_tokens += max(0, min(short.kv, short.reusable) - hit)
        counters.prompt_flops += costs.prefill_flops(short.prompt)
        if hit > 0:
            counters.saved_flops += costs.prefill_flops(hit)
            checkpoint = self.view.checkpoints.get(req.last_node)
            if checkpoint is not None:
                counters.count_hit(checkpoint.kind)

    def on_finished(self, req: Req, length: int) -> None:
        """``req`` finished and ``length`` of its tokens enter the tree."""
        self.wanted.observe_sequence(req, length)
        if self.recorder is not None and self.guards.lead.is_on:
            with self.guards.lead:
                self._record(self.recorder, req, length)

    def _record(self, recorder: Recorder, req: Req, length: int) -> None:
        window = recorder.add(req, length, self.wanted.pages_of(req, length), self.wanted)
        if self.tuning is not None:
            self.tuning.count_request()
            if window is not None:
                self.tuning.record(window)

    def put_in_force(
        self, policy: Policy, takes_first_victims: bool, table: DensityTable | None
    ) -> None:
        """Evict by ``policy`` from now on; what is resident stays.

        Args:
            takes_first_victims: whether states that admission does not ask for are kept.
            table: hit densities to begin with, for the policy that needs them.
        """
        self.takes_first_victims = takes_first_victims
        self.view.switch(policy, self._first_victims, table)

    @staticmethod
    def prefill_target(req: Req) -> int:
        """Tokens at which ``req``'s prefill ends (prompt, or prompt + output after retraction)."""
        return getattr(req, "hybrid_prefill_target", len(req.origin_input_ids))

    def note_match(self, req: Req, result: MatchResult, key: RadixKey, branch_kind: Kind) -> None:
        """``req`` was matched, and may now hold a slot for the copy of its hit.

        ``result.mamba_branching_seqlen`` is the branch point as this match sees it;
        later chunks start elsewhere and ask `reachable_depth` again. ``branch_kind`` is
        that of a checkpoint there: where nothing diverges it is an old sequence's end,
        and superseded when the conversation has moved on.
        """
        self._holders[id(req)] = req
        has_branch = result.mamba_branching_seqlen is not None
        branch = (result.full_kv_hit_length, branch_kind) if has_branch else None
        hit, kv_hit = hit_of(result), result.full_kv_hit_length
        reachable = self.components[ComponentType.MAMBA].reachable_depth(hit, kv_hit)
        self.explainer.matched(req, result, reachable)
        self.wanted.plan(req, key, hit, branch)

    def plan_chunk(self, req: Req, end: int | None = None) -> int | None:
        """The wanted checkpoint that ``req``'s next chunk is to keep, in tokens, or None.

        Where a prefill is cut, the chunk ends at the first; where the forward keeps one
        state on a grid, the deepest is worth most. Where it saves any, see `Saver.prepare`.

        Args:
            end: where the chunk ends, if that is known; later ones wait for later chunks.
        """
        start, component = req.prefix_len, self.components[ComponentType.MAMBA]
        reachable = [
            (component.reachable_depth(start, depth), kind)
            for depth, kind in self.wanted.of(req)
            if depth > start and (end is None or depth <= end)
        ]
        reachable = [place for place in reachable if place[0] > start]
        if not reachable:
            req.mamba_branching_seqlen = None
            return None
        place = reachable[-1] if self.keeps_one_state else reachable[0]
        req.mamba_branching_seqlen, req.hybrid_branch_kind = place
        return req.mamba_branching_seqlen

    @property
    def keeps_one_state(self) -> bool:
        """Whether a forward keeps one state, on SGLang's grid."""
        return self.saver is None

    @property
    def branch_checkpoint(self) -> str:
        """How states inside a prompt are had: the configured way, or what the model allows."""
        return "chunk" if self.saver is None else self.saver.mode

    @property
    def checkpoint_grid(self) -> int:
        """Tokens between two states that a prefill can keep."""
        if self.saver is not None:
            return self.page_size
        return self.components[ComponentType.MAMBA].mamba_checkpoint_grid

    @property
    def decode_grid(self) -> int:
        """Tokens between two states that a sequence can end with."""
        if self.saver is not None:
            return self.page_size
        return self.components[ComponentType.MAMBA].mamba_track_grid

    def take_checkpoint_slot(self, req: Req, depth: int) -> Tensor | None:
        """A slot, int64 of shape [1], for a wanted checkpoint; None if none can be had."""
        return self.components[ComponentType.MAMBA].admit(req, "always", depth)

    def free_state_slots(self) -> int:
        """State slots that could be handed out now, by eviction if need be."""
        slots = self._component_available_size(ComponentType.MAMBA) + self.mamba_evictable_size()
        if self.shared is not None:
            slots += self.shared.slots_of_kv()
        return slots + self.slots_set_aside

    @property
    def slots_set_aside(self) -> int:
        """State slots that the scheduling pass under way has taken for its matches."""
        return operator.length_hint(self.req_to_token_pool.mamba_allocator._alloc_iter or ())

    def evict_for_state(self) -> None:
        """Make room for one more state.

        Where memory is shared, a state goes as long as one can: it is what admission has
        weighed, and of KV a whole leaf would go.
        """
        params = EvictParams(num_tokens=0, mamba_num=1)
        if self.shared is not None and self.mamba_evictable_size() > 0:
            self.evict(params)
        else:
            self.evict_for_alloc(params)

    # ---- checks ----

    def checkpoint_into_tree(self, req: Req, *, up_to: int, **kwargs) -> None:
        self._locks_kv_only = True
        try:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        finally:
            self._locks_kv_only = False
        self._check_if_strict()

    def lock(self, node_id, skip_lock_components=()):
        # A request that goes on from a checkpoint works on a copy of it: only the KV
        # of its path must stay. The checkpoint itself may go, or a first victim would
        # hold its slot for as long as the request runs.
        if self._locks_kv_only:
            skip_lock_components = (ComponentType.MAMBA,)
        return super().lock(node_id, skip_lock_components)

    def free_kv_row(self, kv, ranges):
        # Of a request that was retracted, the tree has KV of the output too. What
        # --strip-thinking-cache gives back may begin there.
        first = kv.cache_protected_len
        super().free_kv_row(kv, [(max(start, first), end) for start, end in ranges if end > first])

    def evict_for_alloc(self, params, **kwargs):
        if self.shared is None or params.num_tokens == 0:
            return super().evict_for_alloc(params, **kwargs)
        target = self._component_available_size(ComponentType.FULL) + params.num_tokens
        result = super().evict_for_alloc(params, **kwargs)
        result.mamba_num_evicted += self.shared.give_states(target).mamba_num_evicted
        return result

    def _evict(self, params, available_size_targets=None, **kwargs):
        is_plain = available_size_targets is None and self.shared is None
        if is_plain and params.mamba_num > 0:
            # Every state evicted is a free slot: stop at the last one, without the
            # further step of the walk that would find nothing left to do.
            slots = self._component_available_size(ComponentType.MAMBA) + params.mamba_num
            available_size_targets = {ComponentType.MAMBA: (ComponentType.MAMBA, slots)}
        result = super()._evict(params, available_size_targets, **kwargs)
        self._check_if_strict()
        return result

    def _evict_device_leaf(self, node_id, tracker):
        # What no checkpoint follows any longer goes with its leaf: it cannot be hit, and
        # how a path was cut into nodes must not matter.
        host = self.host
        host.save(self.tree_core.node_by_id(node_id))
        leaves, above = self.tree_core.evictable_device_leaves, self._parent_of(node_id)
        backup = super()._evict_device_leaf(node_id, tracker)
        while (
            backup is None
            and above in leaves
            and above.component_data[ComponentType.MAMBA].value is None
            and host.goes_at_once(above)
        ):
            node_id, above = above.id, above.parent
            backup = super()._evict_device_leaf(node_id, tracker)
        return backup

    def _parent_of(self, node_id):
        return self.tree_core.node_by_id(node_id).parent

    def _component_available_size(self, component_type):
        if component_type is ComponentType.MAMBA and self.shared is None:
            # Asked for several times per victim; `len` of a tensor is a slow call.
            return self.req_to_token_pool.mamba_allocator.free_slots.numel()
        return super()._component_available_size(component_type)

    def _check_if_strict(self) -> None:
        if self.config.strict:
            self.check_integrity()

    def check_integrity(self) -> None:
        """Raise AssertionError unless slots, tree and indexes agree. O(tree); for tests."""
        check_integrity(self, list(self._holders.values()))

    def snapshot(self) -> Snapshot:
        """What the metrics show."""
        return Snapshot(
            counters=self.counters.as_dict(),
            live={kind.name.lower(): count for kind, count in self.view.live.items()},
            host=len(self.host.checkpoints),
            state_bytes=self.view.costs.state_bytes,
            short_hits=self.counters.short.as_dict(),
            record=(0, 0) if self.recorder is None else self.recorder.size,
            tuning=None if self.tuning is None else self.tuning.status(),
            parts=self.guards.status(),
        )

    def status(self) -> dict:
        """Configuration and counters for ``/server_info``."""
        snapshot = dataclasses.asdict(self.snapshot())
        return {
            "config": self.config.effective(),
            "branch_checkpoint": self.branch_checkpoint,
            "checkpoint_grid": self.checkpoint_grid,
            "decode_grid": self.decode_grid,
            **snapshot,
            "times": {} if self.times is None else self.times.totals(),
        }

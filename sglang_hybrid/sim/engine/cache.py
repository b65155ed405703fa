"""The arrays of one simulated cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.hit_density import DensityTable, new_table
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.trace import IntArray
from sglang_hybrid.sim.union_tree import NEVER, UnionTree

NODE = np.dtype(
    [
        # The union tree, with the cuts this cache has added.
        ("parent", np.int32),
        ("depth", np.int32),
        ("fork_time", np.int32),
        ("owner", np.int32),  # static node at or below it that the same prompts pass
        # Residency.
        ("children", np.int32),  # resident ones
        ("child", np.int32),  # first of them, -1
        ("next", np.int32),  # siblings, -1
        ("prev", np.int32),
        ("pins", np.int32),
        ("walked", np.int32),  # last request whose sequence passed the node
        ("longest", np.int32),  # longest sequence so far that passed it
        ("resident", np.bool_),
        ("kv_used", np.bool_),  # part of a hit since it is resident
        # Two pools: KV that is held, whether or not it leads to a state.
        ("held", np.bool_),
        ("held_children", np.int32),
        ("locks", np.int32),
        ("made", np.int32),  # request that inserted the KV
        # The state, if `slot` >= 0.
        ("slot", np.int32),
        ("last_use", np.int32),
        ("hits", np.int32),
        ("kind", np.int8),
        ("turn", np.int8),
        ("is_first", np.bool_),
        ("is_dirty", np.bool_),  # facts must be computed anew
        ("indexed", np.int8),  # 0: not in the index, else 1 + tier; `AS_EVIDENCE`
        ("saved", np.float64),
        ("freed", np.float64),
        ("weight", np.float64),
        ("base", np.float64),  # inflation when it was last touched (gdsf)
        ("next_use", np.int32),  # offline
        # Pairing heap of its bucket.
        ("bucket", np.int64),
        ("heap_child", np.int32),
        ("heap_next", np.int32),
        ("heap_prev", np.int32),
    ],
    align=True,
)

REQUEST_ROW = np.dtype(
    [
        ("prompt_node", np.int32),
        ("end_node", np.int32),
        ("input_len", np.int64),
        ("output_len", np.int64),
        ("system_len", np.int64),
        ("turn", np.int8),
    ],
    align=True,
)

POSITION = np.dtype([("depth", np.int64), ("node", np.int32), ("kind", np.int8)], align=True)

RULES = np.dtype(
    [
        ("inflation", np.float64),  # loss of the last victim (gdsf); all else is constant
        ("flops_linear", np.float64),
        ("flops_quadratic", np.float64),
        ("kv_bytes", np.float64),
        ("state_bytes", np.float64),
        ("budget", np.float64),
        ("has_pools", np.bool_),
        ("state_slots", np.int64),
        ("kv_tokens", np.int64),
        ("policy", np.int64),
        ("alpha", np.float64),
        ("share", np.float64),
        ("threshold", np.int64),
        ("bucket_width", np.float64),
        ("max_children", np.int64),
        ("refresh_path", np.bool_),
        ("kv_lru", np.bool_),
        ("use_index", np.bool_),
        ("branch", np.int64),
        ("branch_full", np.bool_),
        ("decode_end", np.int64),
        ("prompt_end", np.int64),
        ("ghost_forks", np.int64),
        ("ghost_self", np.bool_),
        ("system_end", np.bool_),
        ("min_gain", np.int64),
        ("chunk", np.int64),
        ("chunk_or_branch", np.bool_),
        ("block", np.int64),
        ("truncate", np.bool_),
        ("first_victims", np.bool_),
        ("max_states_per_path", np.int64),
    ],
    align=True,
)

# What `policy` in RULES stands for.
LRU, UTILITY, LINEAR, HYPERBOLIC, GDSF, GDSF_ONE, SEGLEN, TLRU, DENSITY, OFFLINE = range(10)

FIRST, NORMAL = 0, 1  # tiers of victims
AS_EVIDENCE = 3  # `indexed` of the end of a path that leads to no state

# Places in `Cache.counts`.
(
    NODES,
    KV,
    STATES,
    PINNED_KV,
    PINNED_STATES,
    RESERVED_KV,
    RESERVED_STATES,
    FIRST_STATES,
    DIRTY,
    LEAVES_EVICTED,
    INTERIORS_EVICTED,
    KV_EVICTED,
    KV_MADE,
    KV_USED,
    STATES_MADE,
    STATES_USED,
    VICTIMS,
    FIRST_EVICTION,
    USED_KINDS,
    RANDOM,  # state of SplitMix64
    FIRST_BUCKETS,  # and, next to it, those of the other tier
    NORMAL_BUCKETS,
    LOCKED_KV,
    EVIDENCE,  # oldest end of a path that leads to no state, -1: none
    NUM_COUNTS,
) = range(25)

# Rows of `Cache.lists`.
SLOTS, DIRTY_LIST, HEADS, FIRST_ROOTS, NORMAL_ROOTS, NUM_LISTS = range(6)


class Cache(NamedTuple):
    """One simulated cache.

    Attributes:
        rules: RULES[1].
        nodes: NODE[capacity], the first ``counts[NODES]`` in use.
        counts: int64[NUM_COUNTS].
        lists: int32[NUM_LISTS, capacity], lists of nodes: those with a state, those whose
            facts are to be computed anew, the compared candidates, and the oldest of
            each bucket per tier.
        bucket_keys: of the buckets, int64[2, capacity].
        plan: POSITION[P], planned positions.
        victims: int32[V, 3], a log (clock, depth, was a leaf) if V > 0.
        table: hit densities.
        passes: for `offline`, prompts that pass each static node: int32; where those of
            node n start, for each n, then the prompts.
        requests: REQUEST_ROW[R].
    """

    rules: NDArray[Any]
    nodes: NDArray[Any]
    counts: IntArray
    lists: NDArray[np.int32]
    bucket_keys: IntArray
    plan: NDArray[Any]
    victims: NDArray[np.int32]
    table: DensityTable
    passes: NDArray[np.int32]
    requests: NDArray[Any]


def new_cache(
    tree: UnionTree,
    costs: ModelCosts,
    policy: PolicySpec,
    admission: Admission,
    budget: Budget | None,
    *,
    log_victims: bool = False,
    spare_nodes: int = 64,
) -> Cache:
    """An empty cache; ``budget`` None is one without limit.

    Args:
        spare_nodes: room for so many cuts.
    """
    capacity = tree.num_nodes + spare_nodes
    nodes = np.zeros(capacity, NODE)
    count = tree.num_nodes
    nodes["parent"][:count] = tree.parent
    nodes["depth"][:count] = tree.depth
    nodes["fork_time"] = NEVER
    nodes["fork_time"][:count] = tree.fork_time
    nodes["owner"][:count] = np.arange(count)
    for name in ("child", "next", "prev", "slot", "heap_child", "heap_next", "heap_prev"):
        nodes[name] = -1
    nodes["resident"][0] = nodes["held"][0] = True
    counts = np.zeros(NUM_COUNTS, np.int64)
    counts[NODES] = count
    counts[FIRST_EVICTION] = -1
    counts[RANDOM] = policy.seed
    counts[EVIDENCE] = -1
    requests = np.zeros(len(tree.input_len), REQUEST_ROW)
    for name in REQUEST_ROW.names or ():
        requests[name] = getattr(tree, name)
    return Cache(
        rules=_rules(costs, policy, admission, budget),
        nodes=nodes,
        counts=counts,
        lists=np.empty((NUM_LISTS, capacity), np.int32),
        bucket_keys=np.empty((2, capacity), np.int64),
        plan=np.empty(64, POSITION),
        victims=np.empty((1024 if log_victims else 0, 3), np.int32),
        table=new_table(),
        passes=_passes(tree) if policy.kind == "offline" else np.empty(0, np.int32),
        requests=requests,
    )


def grown(cache: Cache, nodes: int, planned: int) -> Cache:
    """The same cache with room for so many further nodes and planned positions."""
    counts = cache.counts
    capacity = max(len(cache.nodes), 2 * (int(counts[NODES]) + nodes))
    changes: dict[str, Any] = {}
    if capacity > len(cache.nodes):
        more = np.zeros(capacity, NODE)
        more[: len(cache.nodes)] = cache.nodes
        changes["nodes"] = more
        for name in ("lists", "bucket_keys"):
            old = getattr(cache, name)
            changes[name] = np.empty((len(old), capacity), old.dtype)
            changes[name][:, : old.shape[1]] = old
    if planned > len(cache.plan):
        changes["plan"] = np.empty(2 * planned, POSITION)
    if len(cache.victims):
        room = len(cache.victims) + 4 * capacity
        log = np.empty((room, 3), np.int32)
        log[: len(cache.victims)] = cache.victims
        changes["victims"] = log
    return cache._replace(**changes)


def set_rules(cache: Cache, policy: PolicySpec, admission: Admission) -> None:
    """Put another policy and admission in force. The index must be built anew."""
    _set_policy(cache.rules[0], policy)
    _set_admission(cache.rules[0], admission)


def _rules(
    costs: ModelCosts, policy: PolicySpec, admission: Admission, budget: Budget | None
) -> NDArray[Any]:
    rules = np.zeros(1, RULES)
    row = rules[0]
    row["flops_linear"] = costs.flops_linear
    row["flops_quadratic"] = costs.flops_quadratic
    row["kv_bytes"] = costs.kv_bytes_per_token
    row["state_bytes"] = costs.state_bytes
    row["budget"] = np.inf if budget is None else budget.total_bytes
    if budget is not None and budget.has_pools:
        row["has_pools"] = True
        row["state_slots"] = budget.state_slots
        row["kv_tokens"] = budget.kv_tokens
    _set_policy(row, policy)
    _set_admission(row, admission)
    return rules


def _set_policy(row: Any, policy: PolicySpec) -> None:
    codes = {
        "lru": LRU,
        "utility": UTILITY,
        "marconi": LINEAR if policy.recency == "linear" else HYPERBOLIC,
        "gdsf": GDSF if policy.cost == "flops" else GDSF_ONE,
        "seglen": SEGLEN,
        "tlru": TLRU,
        "density": DENSITY,
        "offline": OFFLINE,
    }
    code = codes[policy.kind]
    row["policy"] = code
    row["alpha"] = policy.alpha
    row["share"] = policy.weight
    row["threshold"] = policy.threshold
    row["bucket_width"] = policy.bucket_width if policy.bucket_width > 1e-9 else 0.0
    row["max_children"] = {"leaf": 0, "single_child": 1, "any": NEVER}[policy.candidates]
    row["refresh_path"] = policy.refresh == "path"
    row["kv_lru"] = policy.kv_lru
    has_buckets = code in (LRU, UTILITY, LINEAR, HYPERBOLIC) and row["bucket_width"] > 0
    row["use_index"] = has_buckets and policy.candidates != "leaf"


def _set_admission(row: Any, admission: Admission) -> None:
    row["branch"] = admission.branch
    row["branch_full"] = admission.branch_full
    row["decode_end"] = admission.decode_end
    row["prompt_end"] = admission.prompt_end
    row["ghost_forks"] = admission.ghost_forks
    row["ghost_self"] = admission.ghost_self
    row["system_end"] = admission.system_end
    row["min_gain"] = admission.min_gain_tokens
    row["chunk"] = admission.chunk_tokens
    row["chunk_or_branch"] = admission.chunk_or_branch
    row["block"] = admission.block_tokens
    row["truncate"] = admission.truncate
    row["first_victims"] = admission.first_victims
    row["max_states_per_path"] = admission.max_states_per_path


def _passes(tree: UnionTree) -> NDArray[np.int32]:
    """For each node the prompts that pass it, in order, one node after another."""
    nodes: list[NDArray[np.int32]] = []
    at = tree.prompt_node.copy()
    inside = np.arange(len(at), dtype=np.int32)
    requests: list[NDArray[np.int32]] = []
    while len(at):
        keep = at > 0
        at, inside = at[keep], inside[keep]
        nodes.append(at)
        requests.append(inside)
        at = tree.parent[at]
    node, request = np.concatenate(nodes), np.concatenate(requests)
    order = np.lexsort((request, node))
    starts = np.full(tree.num_nodes + 1, tree.num_nodes + 1, np.int64)
    starts[1:] += np.cumsum(np.bincount(node, minlength=tree.num_nodes))
    passes: NDArray[np.int32] = np.concatenate((starts, request[order])).astype(np.int32)
    return passes

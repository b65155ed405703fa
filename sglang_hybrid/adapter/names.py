"""Every private name of SGLang that this package touches, with its expected signature.

SGLang moves such names between releases. The table is checked when the cache is
selected, before weights load, and by `hybrid-marconi doctor`; a name that moved
then stops the server with its old and new signature instead of failing later.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SUPPORTED_VERSION = "0.5.23"
"""The SGLang release whose names the table below describes."""

ALLOW_UNSUPPORTED_ENV = "SGLANG_HYBRID_ALLOW_UNSUPPORTED"
"""Set to 1, another release of SGLang only warns; the table is checked all the same."""

SERVER_ARGS = "sglang.srt.server_args:ServerArgs"
_COMPONENTS = "sglang.srt.mem_cache.unified_cache.components"
_BATCH = "sglang.srt.managers.schedule_batch"
_LAYERS = "sglang.srt.layers.attention"
_RULE = "self q k v g beta ssm_states cache_indices query_start_loc"
_TREE = "sglang.srt.mem_cache.unified_cache.unified_tree_core:UnifiedTreeCore"


@dataclass(frozen=True)
class Name:
    """One name of SGLang.

    Attributes:
        path: `module:attribute.path`.
        parameters: names of the parameters, `self` included; None where only
            the existence matters.
    """

    path: str
    parameters: tuple[str, ...] | None


@dataclass(frozen=True)
class Finding:
    """What the installed SGLang has under a name; `found` reads like `Name` does."""

    name: Name
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        return self.found == self.expected


def _of(owner: str, signatures: Mapping[str, str | None]) -> tuple[Name, ...]:
    """Names of a module (`module`) or class (`module:Class`), parameters as words."""
    separator = "." if ":" in owner else ":"
    return tuple(
        Name(
            f"{owner}{separator}{attribute}",
            None if parameters is None else tuple(parameters.split()),
        )
        for attribute, parameters in signatures.items()
    )


_EVICTION = {
    "_evict_device_start": "self request_cnt",
    "_evict_device_next_node": "self tracker device_frees host_frees cache_actions",
    "_evict_device_end": "self",
    "evict_component": "self node device_frees host_frees cache_actions target",
    "acquire_component_lock": "self node result lock_host",
    "release_component_lock": "self node params lock_host",
}

NAMES: tuple[Name, ...] = (
    *_of(
        f"{_COMPONENTS}.mamba:MambaComponent",
        {
            **_EVICTION,
            "finalize_match_result_in_tree_core": "self result params value_chunks best_value_len",
            "finalize_match_result_in_cache": "self params result",
            "commit_insert_component_data": "self node is_new_leaf params result cache_actions",
            "prepare_for_caching_req": "self req insert_params token_ids_len is_finished",
            "cleanup_after_caching_req": "self req is_finished insert_result insert_params",
            "commit_hicache_transfer": "self node phase transfers cache_actions insert_result "
            "pool_storage_result",
        },
    ),
    *_of(
        f"{_COMPONENTS}.full:FullComponent",
        {**_EVICTION, "redistribute_on_node_split": "self new_parent child"},
    ),
    *_of(f"{_COMPONENTS}.base:TreeComponent", {"discard_deleted_session_leaf": "self node"}),
    *_of(
        "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache",
        {
            "checkpoint_into_tree": "self req up_to kwargs",
            "evict_for_alloc": "self params allocation_reclaim_satisfied",
            "_evict": "self params available_size_targets allocation_reclaim_satisfied",
            "_component_available_size": "self component_type",
            "_evict_device_leaf": "self node_id tracker",
            "free_kv_row": "self kv ranges",
            "lock": "self node_id skip_lock_components",
            "unlock": "self lock",
            "mamba_evictable_size": "self",
            "reset": "self",
            "sanity_check": "self",
            "init_hicache": "self server_args params",
            "attach_storage_backend": "self storage_backend storage_backend_extra_config_json "
            "served_model_name hicache_storage_prefetch_policy hicache_write_policy",
            "flush_pending_backups": "self",
            "init_load_back": "self params",
            "load_back": "self node_id mem_quota req",
            "backup_node_for_write_back": "self node_id",
            "writing_check": "self write_back finish_count",
            "_execute_and_commit_kv_backup": "self action write_back",
            "root_node_handle": "self extra_key",
        },
    ),
    *_of(
        _TREE,
        {
            "_split_node": "self key child split_len",
            "_evict_component_and_detach_lru": "self node comp device_frees host_frees "
            "cache_actions target tracker",
            "node_by_id": "self node_id",
            "empty_match_result": None,
            "component_has_host_value_only": "self node_id component_type",
            "get_component_device_value": "self node_id component_type",
            "set_component_device_value": "self node_id component_type value",
        },
    ),
    *_of("sglang.srt.mem_cache.unified_cache.cache_action", {"BackupKV": None}),
    *_of(
        "sglang.srt.mem_cache.memory_pool:HybridReqToTokenPool",
        {
            "donate_mamba_ping_pong_slot": "self req new_slot",
            "get_mamba_indices": "self req_indices",
            "set_mamba_ping_pong_slot": "self req idx value",
            "get_mamba_ping_pong_other_idx": "self mamba_next_track_idx",
            "translate_mamba_indices": "self mamba_indices",
            "mamba_v2p_table": None,
        },
    ),
    *_of(
        "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator",
        {"mamba_full_cache_donor": "self", "verify_byte_accounting": "self"},
    ),
    *_of(
        "sglang.srt.mem_cache.prefill_budget:PrefillBudget",
        {"_available_and_evictable": "self", "remaining_total": None, "remaining_current": None},
    ),
    *_of(
        "sglang.srt.mem_cache.memory_pool:MambaPool",
        {"copy_from": "self src_indices dst_indices", "register_slot_state": "self state"},
    ),
    *_of(
        "sglang.srt.mem_cache.allocator.mamba:MambaSlotAllocator",
        {"alloc": "self need_size", "available_size": "self", "alloc_group_begin": "self num_reqs"},
    ),
    *_of(
        "sglang.srt.managers.schedule_policy:PrefillAdder",
        {
            "add_one_req": "self req has_chunked_req truncation_align_size",
            "_select_prefill_admission": "self req total_tokens host_hit_length "
            "swa_host_hit_length truncation_align_size has_chunked_req",
            "_commit_prefill_admission": "self req admission mamba_gap_reserve",
            "add_chunked_req": "self req",
        },
    ),
    *_of(
        _BATCH,
        {
            "ScheduleBatch.prepare_for_extend": "self",
            "ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend": "self req",
            "_MambaRadixCacheV2TrackEntry": "track_mask track_position track_seqlen",
            "mamba_track_grid": "tree_page",
            "Req.__init__": None,
            "Req._check_token_based_finish": "self new_accepted_tokens",
            "Req.next_output_finishes_by_length": "self",
        },
    ),
    *_of(
        "sglang.srt.managers.scheduler_components.batch_result_processor",
        {"mamba_track_grid": "tree_page"},
    ),
    *_of(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        {"init_new": None},
    ),
    *_of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        {"forward": None},
    ),
    *_of(
        f"{_LAYERS}.hybrid_linear_attn_backend",
        {
            "track_mamba_states_all_layers": "conv_states_pool ssm_states_pool cache_indices "
            "mamba_track_mask mamba_track_indices batch_size check_freed_slots",
            "Mamba2AttnBackend": None,
        },
    ),
    *_of(
        f"{_LAYERS}.mamba.mamba:MambaMixer2",
        {
            "forward": "self hidden_states output layer_cache metadata mup_vector "
            "use_triton_causal_conv"
        },
    ),
    *_of(
        "sglang.kernels.ops.mamba.triton_ops.ssd_combined",
        {
            "_track_states_at": "B x dt dA_cumsum states cu_seqlens initial_states track_seq_idx "
            "track_end_locs"
        },
    ),
    *_of(
        f"{_LAYERS}.linear.gdn_backend",
        {
            "GDNAttnBackend.forward_extend": "self layer forward_batch mixed_qkv a b kwargs",
            "GDNKernelDispatcher.extend": f"{_RULE} kwargs",
            "TritonGDNKernel": None,
        },
    ),
    *_of(
        f"{_LAYERS}.linear.kda_backend",
        {
            "KDAAttnBackend.forward_extend": "self layer forward_batch mixed_qkv a b kwargs",
            "KDAKernelDispatcher.extend": f"{_RULE} kwargs",
            "TritonKDAKernel": None,
        },
    ),
    *_of(
        "sglang.srt.managers.scheduler:Scheduler",
        {
            "get_prefill_adder_class": "self",
            "get_internal_state": "self recv_req",
            "init_request_receiver": "self",
            "set_internal_state": "self recv_req",
        },
    ),
    *_of(
        "sglang.srt.managers.scheduler_components.metrics_reporter:SchedulerMetricsReporter",
        {
            "report_prefill_stats": "self batch prefill_stats can_run_cuda_graph "
            "dp_cooperation_info",
            "report_decode_stats": "self can_run_cuda_graph running_batch num_generated_tokens",
            "_maybe_log_idle_metrics": "self",
        },
    ),
    *_of(
        "sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer",
        {"get_cached_tokens_details": "self req"},
    ),
    *_of(
        "sglang.srt.managers.io_struct",
        {"SetInternalStateReqOutput": None, "CachedTokensDetails": None},
    ),
    *_of(
        "sglang.srt.managers.scheduler_components.request_receiver:SchedulerRequestReceiver",
        {"recv_requests": "self local_reqs"},
    ),
    *_of("sglang.srt.utils.rank_consensus_checker", {"assert_same": "msg_fmt args"}),
    *_of(
        "sglang.srt.mem_cache.registry",
        {
            "register_radix_cache_backend": "name factory",
            "registered_radix_cache_backends": "",
            "create_unified_radix_cache": "ctx cache_class",
        },
    ),
    *_of(
        SERVER_ARGS,
        {
            "add_cli_args": "parser",
            "from_cli_args": "args",
            "resolve_once": "self",
            "check_server_args": "self",
        },
    ),
    *_of("sglang.srt.entrypoints.engine:Engine", {"server_args_class": None}),
    *_of(
        "sglang.srt.plugins.hook_registry:HookRegistry",
        {"register": "target hook hook_type source", "apply_hooks": "", "_patched": None},
    ),
    *_of(
        "sglang.srt.arg_groups.overrides",
        {
            "declare_resolution": "server_args source fields",
            "mamba_cache_chunk_size": "server_args",
            "mamba_extra_buffer_of": "cfg",
            "model_config_of": "server_args",
            "resolving_view": "server_args",
        },
    ),
    *_of("sglang.srt.runtime_context", {"mamba_track_grid": "tree_page"}),
    *_of("sglang.srt.mem_cache.kv_cache_builder", {"uses_ssm_state": "model_config"}),
)


def field_names() -> tuple[Name, ...]:
    """The fields of `ServerArgs` that validation reads."""
    from sglang_hybrid.adapter.validation import FIELDS

    return _of(SERVER_ARGS, dict.fromkeys(FIELDS))


def all_names() -> tuple[Name, ...]:
    """`NAMES` and `field_names()`."""
    return (*NAMES, *field_names())


def check(names: Iterable[Name] | None = None) -> list[Finding]:
    """Compare names (default: all) with the installed SGLang; imports what it checks."""
    return [_look_up(name) for name in (all_names() if names is None else names)]


def problems(names: Iterable[Name] | None = None) -> list[str]:
    """One line for every name (default: all) that is not as expected."""
    return problems_of(check(names))


def problems_of(findings: Iterable[Finding]) -> list[str]:
    """One line for every finding that is not as expected."""
    return [
        f"sglang {installed_version()}: {finding.name.path} is {finding.found}, expected "
        f"{finding.expected}; install sglang=={SUPPORTED_VERSION}, or adapt the caller and the "
        "table in sglang_hybrid/adapter/names.py"
        for finding in findings
        if not finding.ok
    ]


def _look_up(name: Name) -> Finding:
    expected = "present" if name.parameters is None else f"({', '.join(name.parameters)})"
    try:
        value = pkgutil.resolve_name(name.path)
    except Exception as error:  # importing a module of a broken installation raises anything
        return Finding(name, expected, f"missing ({error})".splitlines()[0])
    if name.parameters is None:
        return Finding(name, expected, "present")
    try:
        parameters = ", ".join(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return Finding(name, expected, f"a {type(value).__name__} without a signature")
    return Finding(name, expected, f"({parameters})")


def installed_version() -> str:
    """Version of the installed SGLang, without importing it; "none" if there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def version_problem() -> str | None:
    """Why the installed SGLang cannot be used, as one line; None if it can."""
    version = installed_version()
    if version == SUPPORTED_VERSION:
        return None
    return (
        f"sglang {version} is not supported; allowed: {SUPPORTED_VERSION}; install "
        f"sglang=={SUPPORTED_VERSION}, or set {ALLOW_UNSUPPORTED_ENV}=1 to try it anyway"
    )


def unsupported_allowed() -> bool:
    """Whether the user asked to go on with another version of SGLang."""
    return os.environ.get(ALLOW_UNSUPPORTED_ENV, "") == "1"

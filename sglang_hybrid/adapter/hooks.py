"""The hooks into SGLang, as two tables, and the check that they are in place.

SGLang only logs a hook that it cannot apply and then runs without it. A server that
was asked for this cache must not do that, so the launcher and the scheduler compare
the tables with what the registry has really patched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_REPORTER = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"


@dataclass(frozen=True)
class Hook:
    """One hook.

    Attributes:
        target: dotted path of the function of SGLang.
        kind: "after" or "around", as in SGLang's `HookType`.
        function: `module:name` of ours, imported when the hook is installed.
    """

    target: str
    kind: str
    function: str


LAUNCH = (
    Hook(f"{_SERVER_ARGS}.add_cli_args", "after", "sglang_hybrid.adapter.flags:add_flags"),
    Hook(f"{_SERVER_ARGS}.from_cli_args", "after", "sglang_hybrid.adapter.flags:read_flags"),
    Hook(f"{_SERVER_ARGS}.resolve_once", "around", "sglang_hybrid.adapter.launch:resolve_once"),
    Hook(
        f"{_SERVER_ARGS}.check_server_args",
        "after",
        "sglang_hybrid.adapter.launch:check_server_args",
    ),
)
"""In every process; they do nothing for a record that does not select this cache."""

SCHEDULER = (
    Hook(
        f"{_SCHEDULER}.get_prefill_adder_class",
        "after",
        "sglang_hybrid.adapter.serving:prefill_adder_class",
    ),
    Hook(
        "sglang.srt.managers.schedule_batch.Req.__init__",
        "after",
        "sglang_hybrid.adapter.namespaces:separate_adapters",
    ),
    Hook(
        f"{_SCHEDULER}.init_request_receiver",
        "after",
        "sglang_hybrid.adapter.serving:bind_scheduler",
    ),
    Hook(
        f"{_SCHEDULER}.get_internal_state", "after", "sglang_hybrid.adapter.serving:internal_state"
    ),
    Hook(
        f"{_SCHEDULER}.set_internal_state",
        "around",
        "sglang_hybrid.adapter.record_export:set_internal_state",
    ),
    Hook(
        f"{_REPORTER}.report_prefill_stats", "after", "sglang_hybrid.adapter.metrics:after_prefill"
    ),
    Hook(f"{_REPORTER}.report_decode_stats", "after", "sglang_hybrid.adapter.metrics:after_decode"),
    Hook(
        f"{_REPORTER}._maybe_log_idle_metrics", "after", "sglang_hybrid.adapter.metrics:after_idle"
    ),
    Hook(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
        ".get_cached_tokens_details",
        "after",
        "sglang_hybrid.adapter.explain:cached_tokens_details",
    ),
)
"""Only in a scheduler that builds this cache, so that a stock server is not touched."""

_BATCH = "sglang.srt.managers.schedule_batch"
_LAYERS = "sglang.srt.layers.attention"
_GDN = f"{_LAYERS}.linear.gdn_backend"
_KDA = f"{_LAYERS}.linear.kda_backend"
_SAVING = "sglang_hybrid.adapter.saving"
_FORWARD = "sglang_hybrid.adapter.forward_saves"
_OF_LAYERS = "sglang_hybrid.adapter.saving_layers"

SAVING = (
    Hook(f"{_BATCH}.ScheduleBatch.prepare_for_extend", "after", f"{_SAVING}:prepare_for_extend"),
    Hook(
        f"{_BATCH}.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend",
        "around",
        f"{_SAVING}:track_entry",
    ),
    Hook(f"{_BATCH}.mamba_track_grid", "around", f"{_SAVING}:track_grid"),
    Hook(
        "sglang.srt.managers.scheduler_components.batch_result_processor.mamba_track_grid",
        "around",
        f"{_SAVING}:track_grid",
    ),
    Hook(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        "after",
        f"{_FORWARD}:attach",
    ),
    Hook(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        "around",
        f"{_FORWARD}:forward",
    ),
)
"""Only where prefill saves states at exactly their token."""

LAYERS = {
    "mamba2": (
        Hook(f"{_LAYERS}.mamba.mamba.MambaMixer2.forward", "around", f"{_OF_LAYERS}:mamba2"),
        Hook(f"{_LAYERS}.mamba.mamba.causal_conv1d_fn", "around", f"{_OF_LAYERS}:convolution"),
        Hook(
            f"{_LAYERS}.mamba.mamba.causal_conv1d_fn_triton", "around", f"{_OF_LAYERS}:convolution"
        ),
        Hook(
            "sglang.kernels.ops.mamba.triton_ops.ssd_combined._track_states_at",
            "around",
            f"{_OF_LAYERS}:scan_states",
        ),
    ),
    "gdn": (
        Hook(f"{_GDN}.GDNAttnBackend.forward_extend", "around", f"{_OF_LAYERS}:gdn"),
        Hook(f"{_GDN}.GDNKernelDispatcher.extend", "around", f"{_OF_LAYERS}:gdn_rule"),
    ),
    "kda": (
        Hook(f"{_KDA}.KDAAttnBackend.forward_extend", "around", f"{_OF_LAYERS}:kda"),
        Hook(f"{_KDA}.KDAKernelDispatcher.extend", "around", f"{_OF_LAYERS}:kda_rule"),
    ),
}
"""Besides, by the model's family of state layers."""


def register(hooks: Iterable[Hook]) -> None:
    """Hand hooks to SGLang's registry, once each; SGLang applies them."""
    import pkgutil

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        if hook.target not in HookRegistry._patched:
            function = pkgutil.resolve_name(hook.function)
            HookRegistry.register(hook.target, function, HookType(hook.kind))


def install(hooks: Iterable[Hook]) -> None:
    """Register hooks and have SGLang apply them now.

    Raises:
        RuntimeError: one of them is not in place; the server must not come up like that.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks = tuple(hooks)
    register(hooks)
    HookRegistry.apply_hooks()
    if missing := problems(hooks):
        raise RuntimeError(missing[0])


def problems(hooks: Iterable[Hook]) -> list[str]:
    """One line for every hook that SGLang has not applied."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [
        f"the hook on {hook.target} is not in place, see the log above for the reason; allowed: "
        "all hooks of sglang-hybrid; run `hybrid-marconi doctor`"
        for hook in hooks
        if hook.target not in HookRegistry._patched
    ]

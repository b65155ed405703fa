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
        f"{_SCHEDULER}.init_request_receiver",
        "after",
        "sglang_hybrid.adapter.serving:bind_scheduler",
    ),
    Hook(
        f"{_SCHEDULER}.get_internal_state", "after", "sglang_hybrid.adapter.serving:internal_state"
    ),
)
"""Only in a scheduler that builds this cache, so that a stock server is not touched."""


def register(hooks: Iterable[Hook]) -> None:
    """Hand hooks to SGLang's registry, once each; SGLang applies them."""
    import pkgutil

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        if hook.target not in HookRegistry._patched:
            function = pkgutil.resolve_name(hook.function)
            HookRegistry.register(hook.target, function, HookType(hook.kind))


def problems(hooks: Iterable[Hook]) -> list[str]:
    """One line for every hook that SGLang has not applied."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [
        f"the hook on {hook.target} is not in place, see the log above for the reason; allowed: "
        "all hooks of sglang-hybrid; run `hybrid-marconi doctor`"
        for hook in hooks
        if hook.target not in HookRegistry._patched
    ]

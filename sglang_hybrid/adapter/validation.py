"""What cannot be served together with this cache, refused before weights load.

One table, `RULES`, states every refusal. Most rules read what the user gave and
are checked before SGLang resolves the record; the others need its decisions (which
strategy, which model) and are checked after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sglang_hybrid.adapter.record import CACHE_NAME, explicitly_set

_CORE_ENV = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
_CHOOSE = f"or leave out --cache {CACHE_NAME}"


@dataclass(frozen=True)
class Rule:
    """One refusal.

    Attributes:
        fields: fields of `ServerArgs` that the rule reads.
        refused: whether a record, or a view of it, is refused.
        value: the offending flag with its value, for the message.
        allowed: what is allowed instead.
        advice: what the user should do.
        stage: whether it reads what the user gave, what SGLang resolved, or either.
    """

    fields: tuple[str, ...]
    refused: Callable[[Any], bool]
    value: Callable[[Any], str]
    allowed: str
    advice: str
    stage: Literal["input", "resolved", "either"] = "either"

    def message(self, view: Any) -> str:
        """One line that names the value, what is allowed and what to do."""
        return (
            f"{self.value(view)} cannot be used with --cache {CACHE_NAME}; allowed: "
            f"{self.allowed}; {self.advice}, {_CHOOSE}"
        )


def _flag_of(field: str) -> str:
    return "--" + field.strip("_").replace("_", "-")


def _switch(field: str) -> Rule:
    """A switch that has to stay off."""
    flag = _flag_of(field)
    return Rule(
        (field,),
        lambda view: bool(getattr(view, field)),
        lambda view: flag,
        f"without {flag}",
        f"remove {flag}",
    )


def _only(field: str, value: Any, allowed: str | None = None) -> Rule:
    """A field that has to keep one value."""
    flag = _flag_of(field)
    return Rule(
        (field,),
        lambda view: getattr(view, field) != value,
        lambda view: f"{flag} {getattr(view, field)}",
        allowed or f"{flag} {value}",
        f"remove {flag}",
    )


def _no_buffer(field: str, refused: Callable[[Any], bool], **texts: Any) -> Rule:
    """A rule of the `no_buffer` strategy, which "auto" may resolve to."""
    return Rule(
        ("mamba_radix_cache_strategy", field),
        lambda view: view.mamba_radix_cache_strategy == "no_buffer" and refused(view),
        **texts,
    )


def _chunking_off(view: Any) -> bool:
    return view.chunked_prefill_size is not None and view.chunked_prefill_size <= 0


def _without_ssm_layers(view: Any) -> bool:
    from sglang.srt.arg_groups.overrides import model_config_of
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    return not uses_ssm_state(model_config_of(view))


def _architecture(view: Any) -> str:
    from sglang.srt.arg_groups.overrides import model_config_of

    names = model_config_of(view).hf_config.architectures or ["unknown"]
    return f"--model-path {view.model_path} ({names[0]})"


RULES: tuple[Rule, ...] = (
    _switch("disable_radix_cache"),
    _switch("enable_lmcache"),
    _switch("enable_flexkv"),
    _switch("enable_unified_cache_external_linker"),
    _switch("enable_session_radix_cache"),
    _switch("enable_streaming_session"),
    _switch("enable_int8_mamba_checkpoint"),
    _switch("enable_kv_cache_sharding"),
    _switch("enable_unified_memory"),
    _switch("enable_hisparse"),
    _switch("enable_pdmux"),
    _switch("enable_linear_replayssm"),
    _switch("encoder_only"),
    _switch("use_ray"),  # Ray's scheduler processes load no plugins
    _only("dcp_size", 1),
    _only("pp_size", 1),
    # A state fetched from storage has neither kind nor hits, and nothing tests it.
    _only("hicache_storage_backend", None, "the host tier alone"),
    _only("mamba_max_states_per_path", -1),
    _only("disaggregation_mode", "null"),
    _only("speculative_algorithm", None, "without speculative decoding"),
    _only("dllm_algorithm", None, "without a diffusion algorithm"),
    Rule(
        ("radix_eviction_policy", "_radix_eviction_policy_explicitly_set"),
        lambda view: (
            view._radix_eviction_policy_explicitly_set
            or explicitly_set(view, "radix_eviction_policy", "lru")
        ),
        lambda view: f"--radix-eviction-policy {view.radix_eviction_policy}",
        'the key "policy" of --cache-config',
        """remove it and use --cache-config '{"policy": ...}'""",
        stage="input",  # SGLang itself changes the policy of some models
    ),
    _only("radix_eviction_policy_config", None, "--cache-config"),
    Rule(
        (),
        lambda view: os.environ.get(_CORE_ENV, "").strip().lower() == "rust",
        lambda view: f"{_CORE_ENV}=rust",
        "python (what the cache uses when it is unset)",
        f"unset {_CORE_ENV}",
    ),
    _no_buffer(
        "chunked_prefill_size",
        _chunking_off,
        value=lambda view: (
            f"--chunked-prefill-size {view.chunked_prefill_size} (chunked prefill off) with "
            "--mamba-radix-cache-strategy no_buffer"
        ),
        allowed="a positive chunk size, because prefill is cut at branch points",
        advice="remove --chunked-prefill-size or use --mamba-radix-cache-strategy extra_buffer",
    ),
    _no_buffer(
        "page_size",
        lambda view: view.page_size not in (None, 1),
        value=lambda view: (
            f"--page-size {view.page_size} with --mamba-radix-cache-strategy no_buffer"
        ),
        allowed="--page-size 1",
        advice="remove --page-size or use --mamba-radix-cache-strategy extra_buffer",
    ),
    _no_buffer(
        "disable_overlap_schedule",
        lambda view: not view.disable_overlap_schedule,
        value=lambda view: "--mamba-radix-cache-strategy no_buffer with the overlap schedule",
        allowed="no_buffer with --disable-overlap-schedule",
        advice="add --disable-overlap-schedule or use --mamba-radix-cache-strategy extra_buffer",
        stage="resolved",  # a platform may switch the overlap schedule off by itself
    ),
    Rule(
        ("model_path",),
        _without_ssm_layers,
        lambda view: f"{_architecture(view)}, a model without SSM layers,",
        "a hybrid attention + SSM model, such as Granite 4, Falcon-H1 or Nemotron-H",
        "choose such a model",
        stage="resolved",
    ),
    Rule(
        ("model_path", "uses_mamba_radix_cache"),
        lambda view: not view.uses_mamba_radix_cache,
        lambda view: f"{_architecture(view)}, whose SSM states SGLang keeps in no prefix cache,",
        "an architecture that SGLang serves with --mamba-radix-cache-strategy",
        "choose such a model",
        stage="resolved",
    ),
)

FIELDS: tuple[str, ...] = tuple(dict.fromkeys(field for rule in RULES for field in rule.fields))
"""Fields of `ServerArgs` that the rules read."""


def input_problem(server_args: Any) -> str | None:
    """The first refusal that what the user gave already decides, as one line."""
    return _first(server_args, (rule for rule in RULES if rule.stage != "resolved"))


def resolved_problem(view: Any) -> str | None:
    """The first refusal of a record that SGLang has resolved, as one line."""
    return _first(view, (rule for rule in RULES if rule.stage != "input"))


def explanation(view: Any) -> str | None:
    """Why SGLang gave up resolving, if one of the rules says so.

    What a rule reads may not be there yet, in which case it explains nothing.
    """
    for rule in RULES:
        try:
            if rule.stage != "input" and rule.refused(view):
                return rule.message(view)
        except Exception:  # a view of a half-resolved record raises whatever it likes
            continue
    return None


def _first(view: Any, rules: Iterable[Rule]) -> str | None:
    return next((rule.message(view) for rule in rules if rule.refused(view)), None)

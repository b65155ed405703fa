"""What cannot be served together with this cache, refused before weights load.

One table, `RULES`, states every refusal. Most rules read what the user gave and
are checked before SGLang resolves the record; the others need its decisions (which
strategy, which model) and are checked after. `support` tells what is served instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from sglang_hybrid.adapter.record import explicitly_set
from sglang_hybrid.adapter.rules import (
    Rule,
    among,
    chunking_off,
    model,
    no_buffer,
    only,
    switch,
    with_sliding_windows,
    without_ssm_layers,
)

_CORE_ENV = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
_STOCK_ONLY = "SGLang serves it with its own caches only"
_NOT_BUILT = "SGLang builds that cache instead of this one"
_PADDED = "its ranks pad each other's batches, on which saving states was never run"
_TOKENS_OVER_RANKS = "a rank that has a part of a row's tokens cannot save states inside it"

RULES: tuple[Rule, ...] = (
    switch("disable_radix_cache", "no prefix is cached then", stage="input"),
    only(
        "hicache_storage_backend",
        None,
        "a state fetched from storage has neither kind nor hits, which was never run",
        "the host tier alone",
    ),
    switch("enable_lmcache", _NOT_BUILT),
    switch("enable_flexkv", _NOT_BUILT),
    switch("enable_unified_cache_external_linker", _STOCK_ONLY),
    switch("enable_session_radix_cache", "sessions would decide who is evicted"),
    switch("enable_streaming_session", "a session would keep the slots of finished requests"),
    switch("enable_int8_mamba_checkpoint", _STOCK_ONLY),
    switch("enable_kv_cache_sharding", _STOCK_ONLY),
    Rule(
        ("enable_hierarchical_cache", "enable_unified_memory"),
        lambda view: view.enable_hierarchical_cache and view.enable_unified_memory,
        lambda view: "--enable-unified-memory with --enable-hierarchical-cache",
        "copies to the host know rows, and of memory that is shared rows move",
        "either of them alone",
        "remove one of them",
    ),
    switch("enable_hisparse", "SGLang serves it without a prefix cache"),
    switch(
        "enable_pdmux",
        "prefill and decode run at once there, while states are saved by one forward",
    ),
    switch(
        "enable_linear_replayssm", "the running state lags behind the tokens by a replay buffer"
    ),
    switch("enable_linear_replayssm_spec", "it serves speculative decoding"),
    switch("enable_two_batch_overlap", "one forward is two, while states are saved for one"),
    switch("enable_dp_attention", _PADDED),
    switch("enable_mis", "SGLang switches the prefix cache off for multi-item scoring"),
    switch("prefill_only_disable_kv_cache", "there is no KV to share then"),
    switch("enable_prefill_cp", _TOKENS_OVER_RANKS),
    switch("encoder_only", "an encoder has no prefix cache"),
    switch("use_ray", "Ray's scheduler processes load no plugins"),
    only("dcp_size", 1, "the KV of a token lies on one of several ranks"),
    only("attn_dp_size", 1, _PADDED),
    only("dwdp_size", 1, _PADDED),
    only("attn_cp_size", 1, _TOKENS_OVER_RANKS),
    only("pp_size", 1, "stages would have to agree on saves and victims, which was never run"),
    only("elastic_ep_backend", None, "ranks come and go, and their trees would differ"),
    only("mamba_max_states_per_path", -1, "the cache decides itself which states of a path stay"),
    only("disaggregation_mode", "null", "states of prefills would have to move to another server"),
    only(
        "speculative_algorithm",
        None,
        "states after rejected tokens would have to be rolled back",
        "without speculative decoding",
    ),
    only("decoupled_spec_role", "null", "it serves speculative decoding"),
    only("dllm_algorithm", None, "it does not compute from left to right", "no diffusion"),
    among("device", (None, "cuda", "cpu"), "the state layers of other devices were never run"),
    among("model_impl", ("auto", "sglang"), "states are saved by SGLang's own layers"),
    Rule(
        ("radix_eviction_policy", "_radix_eviction_policy_explicitly_set"),
        lambda view: (
            view._radix_eviction_policy_explicitly_set
            or explicitly_set(view, "radix_eviction_policy", "lru")
        ),
        lambda view: f"--radix-eviction-policy {view.radix_eviction_policy}",
        "the cache has policies of its own",
        'the key "policy" of --cache-config',
        """remove it and use --cache-config '{"policy": ...}'""",
        stage="input",  # SGLang itself changes the policy of some models
    ),
    only(
        "radix_eviction_policy_config", None, "the cache has policies of its own", "--cache-config"
    ),
    Rule(
        (),
        lambda view: os.environ.get(_CORE_ENV, "").strip().lower() == "rust",
        lambda view: f"{_CORE_ENV}=rust",
        "its components extend SGLang's Python tree",
        "python (what the cache uses when it is unset)",
        f"unset {_CORE_ENV}",
    ),
    no_buffer(
        "chunked_prefill_size",
        chunking_off,
        value=lambda view: (
            f"--chunked-prefill-size {view.chunked_prefill_size} (chunked prefill off) with "
            "--mamba-radix-cache-strategy no_buffer"
        ),
        why="prefill may be cut at branch points",
        allowed="a positive chunk size",
        advice="remove --chunked-prefill-size or use --mamba-radix-cache-strategy extra_buffer",
    ),
    no_buffer(
        "page_size",
        lambda view: view.page_size not in (None, 1),
        value=lambda view: (
            f"--page-size {view.page_size} with --mamba-radix-cache-strategy no_buffer"
        ),
        why="SGLang serves that strategy with pages of one token",
        allowed="--page-size 1",
        advice="remove --page-size or use --mamba-radix-cache-strategy extra_buffer",
    ),
    no_buffer(
        "disable_overlap_schedule",
        lambda view: not view.disable_overlap_schedule,
        value=lambda view: "--mamba-radix-cache-strategy no_buffer with the overlap schedule",
        why="a step in flight would overwrite the only state of a request",
        allowed="no_buffer with --disable-overlap-schedule",
        advice="add --disable-overlap-schedule or use --mamba-radix-cache-strategy extra_buffer",
        stage="resolved",  # a platform may switch the overlap schedule off by itself
    ),
    Rule(
        ("enable_deterministic_inference", "attention_backend", "disable_radix_cache"),
        lambda view: view.enable_deterministic_inference and view.disable_radix_cache,
        lambda view: (
            f"--enable-deterministic-inference with --attention-backend {view.attention_backend}"
        ),
        "SGLang switches the prefix cache off for that backend",
        "a backend that is deterministic with prefixes, such as fa3 or triton",
        "choose another --attention-backend",
        stage="resolved",
    ),
    Rule(
        ("model_path", "disable_radix_cache"),
        lambda view: view.disable_radix_cache,
        lambda view: f"--model-path {view.model_path} with these flags",
        "SGLang switches the prefix cache off for them, see its log",
        "what SGLang serves with a prefix cache",
        "choose another model or other flags",
        stage="resolved",
    ),
    model(
        without_ssm_layers,
        "a model without SSM layers",
        why="there are no states to keep",
        allowed="a hybrid attention + SSM model, such as Granite 4, Falcon-H1 or Nemotron-H",
        advice="choose such a model",
    ),
    model(
        lambda view: not view.uses_mamba_radix_cache,
        "whose SSM states SGLang keeps in no prefix cache",
        "uses_mamba_radix_cache",
        why="it lacks SGLang's support of them",
        allowed="an architecture that SGLang serves with --mamba-radix-cache-strategy",
        advice="choose such a model",
    ),
    model(
        with_sliding_windows,
        "with sliding windows in a pool of their own",
        "disable_hybrid_swa_memory",
        why="that pool's victims are not in its order",
        allowed="one pool for all attention layers",
        advice="add --disable-hybrid-swa-memory",
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

"""The table of refusals, without SGLang's own resolution."""

import argparse
from types import SimpleNamespace

import pytest

from sglang_hybrid.adapter import validation
from sglang_hybrid.adapter.rules import flag_of
from sglang_hybrid.adapter.validation import FIELDS, RULES

ACCEPTED = {
    **dict.fromkeys(FIELDS, False),
    "dcp_size": 1,
    "attn_cp_size": 1,
    "attn_dp_size": 1,
    "dwdp_size": 1,
    "pp_size": 1,
    "elastic_ep_backend": None,
    "decoupled_spec_role": "null",
    "device": None,
    "model_impl": "auto",
    "mamba_max_states_per_path": -1,
    "disaggregation_mode": "null",
    "speculative_algorithm": None,
    "hicache_storage_backend": None,
    "dllm_algorithm": None,
    "radix_eviction_policy": "lru",
    "radix_eviction_policy_config": None,
    "mamba_radix_cache_strategy": "no_buffer",
    "chunked_prefill_size": 2048,
    "page_size": 1,
    "disable_overlap_schedule": True,
    "model_path": "a/hybrid",
}


def problem_with(**fields):
    return validation.input_problem(SimpleNamespace(**{**ACCEPTED, **fields}))


def test_nothing_is_refused_by_default():
    assert problem_with() is None


SWITCHES = [
    rule.fields[0] for rule in RULES if len(rule.fields) == 1 and ACCEPTED[rule.fields[0]] is False
]


@pytest.mark.parametrize("field", SWITCHES)
def test_switch_is_named_alone(field):
    flag = "--" + field.replace("_", "-")
    problem = problem_with(**{field: True})
    assert problem.startswith(f"{flag} cannot be used with --cache hybrid-marconi: ")
    assert f"remove {flag}, or leave out --cache hybrid-marconi" in problem


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_no_buffer_rules_do_not_bind_other_strategies(strategy):
    assert problem_with(page_size=64, mamba_radix_cache_strategy=strategy) is None
    assert problem_with(chunked_prefill_size=-1, mamba_radix_cache_strategy=strategy) is None


@pytest.mark.parametrize("size", [0, -1])
def test_no_buffer_needs_chunks(size):
    assert f"--chunked-prefill-size {size}" in problem_with(chunked_prefill_size=size)


def test_eviction_policy_that_differs_from_the_default_counts_as_given():
    assert "--radix-eviction-policy lfu" in problem_with(radix_eviction_policy="lfu")


def test_half_resolved_record_is_explained_only_where_it_can_be():
    nothing = SimpleNamespace()
    assert validation.explanation(nothing) is None
    assert "--pp-size 2" in validation.explanation(SimpleNamespace(pp_size=2))


def test_messages_name_flags_that_exist():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    without_flag = {"uses_mamba_radix_cache", "_radix_eviction_policy_explicitly_set"}
    for field in set(FIELDS) - without_flag:
        assert flag_of(field) in flags

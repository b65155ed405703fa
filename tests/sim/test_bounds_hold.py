"""No policy saves more than the bound of its admission, whatever it does."""

from dataclasses import replace

import pytest

from sglang_hybrid.sim.bounds import full_kv_reuse, upper_bound
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.union_tree import compile_trace

from .strategies import POLICIES, random_case

CASES = 40


@pytest.mark.parametrize("policy", [*POLICIES, "offline"])
def test_no_policy_beats_the_bound(policy):
    for seed in range(CASES):
        case = random_case(1000 + seed, policy="lru" if policy == "offline" else policy)
        spec = replace(case.policy, kind=policy)
        budget = case.budget
        if budget is None:
            continue
        tree = compile_trace(case.trace)
        run = SerialReplay(tree, case.costs, spec, case.admission, budget)
        run.advance(len(case.trace))
        hits = run.served.hits
        assert hits.sum() <= full_kv_reuse(tree)
        flops = sum(case.costs.prefill_flops(int(hit)) for hit in hits)
        arguments = tree, case.costs, case.admission, budget
        system_len = case.trace.system_len
        bound = upper_bound(*arguments, objective="flops", system_len=system_len)
        assert flops <= bound * (1 + 1e-9), (seed, case.admission)
        bound = upper_bound(*arguments, objective="tokens", system_len=system_len)
        assert hits.sum() <= bound * (1 + 1e-9), (seed, case.admission)

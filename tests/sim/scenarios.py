"""Replays written as text: `abc|de` is a request with prompt `abc` and output `de`.

Unless a test says otherwise a token's KV is 1 byte, a state 10, and F(L) = L.
"""

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.budget import Budget
from sglang_hybrid.sim.policy_spec import PolicySpec
from sglang_hybrid.sim.trace import TraceBuilder

COSTS = ModelCosts(1.0, 10.0, 1.0, 0.0)
ENDS = Admission(decode_end=1)
MARCONI = Admission(branch=1, decode_end=1)
LRU = PolicySpec("lru")


def letters(start, count):
    """`count` characters from `start` on."""
    return "".join(chr(ord(start) + i) for i in range(count))


def trace_of(texts, system_len=None, arrivals=None):
    builder = TraceBuilder("text")
    for i, text in enumerate(texts):
        prompt, _, output = text.partition("|")
        builder.add(
            [ord(c) for c in prompt + output],
            len(prompt),
            len(output),
            system_len=system_len,
            arrival=None if arrivals is None else arrivals[i],
        )
    return builder.build()


def run(
    replay,
    *texts,
    admission=ENDS,
    policy=LRU,
    budget=None,
    pools=None,
    costs=COSTS,
    system_len=None,
    arrivals=None,
    **others,
):
    """`budget` in bytes, or `pools` = (slots, tokens)."""
    if pools:
        budget = Budget(0.0, *pools)
    elif budget is not None:
        budget = Budget(budget)
    trace = trace_of(texts, system_len, arrivals)
    return replay(trace, costs, policy, admission, budget, **others)

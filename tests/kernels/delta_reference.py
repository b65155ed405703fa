"""The delta rule written out token by token in float64, and random inputs for it."""

import torch
from hypothesis import strategies as st
from sglang_hybrid.kernels.delta_rule import CHUNK

SLOTS = 9


def recur(q, k, v, log_decay, beta, state):
    """One sequence and no scale.

    Args: q, k (tokens, key_heads, K), v (tokens, heads, V), log_decay (tokens, heads, 1 or K),
    beta (tokens, heads), state (heads, V, K).

    Returns y (tokens, heads, V) and the states before every token and after the last one
    (tokens + 1, heads, V, K).
    """
    tokens, heads, _ = v.shape
    per_key = heads // q.shape[1]
    states, ys = [state.double()], []
    for t in range(tokens):
        after = torch.empty_like(states[-1])
        y = torch.empty(v.shape[1:], dtype=torch.float64)
        for head in range(heads):
            query, key = (x[t, head // per_key].double() for x in (q, k))
            faded = states[-1][head] * log_decay[t, head].double().exp()
            error = v[t, head].double() - faded @ key
            after[head] = faded + beta[t, head].double() * torch.outer(error, key)
            y[head] = after[head] @ query
        states.append(after)
        ys.append(y)
    return torch.stack(ys), torch.stack(states)


def normalized(x):
    wide = x.double()
    return wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()


@st.composite
def batches(draw):
    lens = draw(st.lists(st.integers(1, 2 * CHUNK + 9), min_size=1, max_size=3))
    return {
        "lens": lens,
        "key_heads": draw(st.integers(1, 2)),
        "per_key": draw(st.integers(1, 2)),
        "K": draw(st.integers(1, 5)),
        "V": draw(st.integers(1, 5)),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16])),
        "slots": draw(st.permutations(range(SLOTS)))[: len(lens)],
        "padded": draw(st.sampled_from([None, *range(len(lens))])),
        "seed": draw(st.integers(0, 2**16)),
    }


def make(case, channels):
    """Inputs of a batch; `channels` is the last dimension of the decay's input."""
    g = torch.Generator().manual_seed(case["seed"])
    tokens, heads = sum(case["lens"]), case["key_heads"] * case["per_key"]

    def rand(*shape, dtype=case["dtype"]):
        return torch.randn(*shape, generator=g).to(dtype)

    slots = list(case["slots"])
    if case["padded"] is not None:
        slots[case["padded"]] = -1
    return {
        "q": rand(1, tokens, case["key_heads"], case["K"]),
        "k": rand(1, tokens, case["key_heads"], case["K"]),
        "v": rand(1, tokens, heads, case["V"]),
        "a": rand(1, tokens, heads, channels),
        "b": rand(1, tokens, heads),
        "A_log": rand(heads, dtype=torch.float32),
        "dt_bias": rand(heads, channels, dtype=torch.float32),
        "pool": rand(SLOTS, heads, case["V"], case["K"], dtype=torch.float32),
        "slots": torch.tensor(slots, dtype=torch.int32),
        "bounds": torch.tensor([0, *case["lens"]]).cumsum(0).to(torch.int32),
    }


def check_decode(t, pool, out, log_decay, beta):
    """Each row of a decode step, and the pool behind it, are those of the recurrence.

    Args: t of `make`, pool after the step, out (batch, 1, heads, V), log_decay (batch, heads,
    1 or K), beta (batch, heads); queries were scaled by a half.
    """
    used = t["slots"].tolist()
    for i, slot in enumerate(used):
        if slot < 0:
            assert not out[i].any()
            continue
        row = slice(i, i + 1)
        y, path = recur(
            normalized(t["q"][0, row]) * 0.5,
            normalized(t["k"][0, row]),
            t["v"][0, row],
            log_decay[row],
            beta[row],
            t["pool"][slot],
        )
        close(out[i], y, out.dtype)
        close(pool[slot], path[1], torch.float32)
    rest = [slot for slot in range(SLOTS) if slot not in used]
    assert torch.equal(pool[rest], t["pool"][rest])


def close(got, want, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)

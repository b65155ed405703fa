"""Attention of new queries against softmax written out in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels import extend_attention as module
from sglang_hybrid.kernels.extend_attention import extend_attention, run_sdpa_forward_extend


def softmax_attention(query, key, value, prefix, scaling, window):
    """query (heads, new, d), key and value (kv_heads, prefix + new, d)."""
    heads, new, _ = query.shape
    repeat = heads // key.shape[0]
    out = torch.zeros(heads, new, value.shape[-1], dtype=torch.float64)
    for head in range(heads):
        k, v = key[head // repeat].double(), value[head // repeat].double()
        for i in range(new):
            first = 0 if window is None else max(0, prefix + i - window)
            seen = slice(first, prefix + i + 1)
            scores = (k[seen] @ query[head, i].double()) * scaling
            out[head, i] = torch.softmax(scores, 0) @ v[seen]
    return out


@given(
    prefix=st.integers(0, 40),
    new=st.integers(1, 20),
    kv_heads=st.integers(1, 2),
    repeat=st.integers(1, 2),
    window=st.sampled_from([None, 1, 7]),
    block=st.sampled_from([3, 256]),
    seed=st.integers(0, 2**16),
)
def test_matches_softmax(prefix, new, kv_heads, repeat, window, block, seed):
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(kv_heads * repeat, new, 8, generator=g)
    key = torch.randn(kv_heads, prefix + new, 8, generator=g)
    value = torch.randn(kv_heads, prefix + new, 8, generator=g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_QUERY_BLOCK", block)
        got = extend_attention(query, key, value, prefix, 0.3, sliding_window_size=window)
    want = softmax_attention(query, key, value, prefix, 0.3, window)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_batch_reads_each_request_through_its_pool_indices():
    g = torch.Generator().manual_seed(0)
    prefix, new = [5, 0, 70], [3, 4, 1]
    pool = 200
    k_cache = torch.randn(pool, 1, 8, generator=g)
    v_cache = torch.randn(pool, 1, 8, generator=g)
    req_to_token = torch.randint(0, pool, (6, 100), generator=g, dtype=torch.int32)
    requests = torch.tensor([4, 0, 2])
    query = torch.randn(sum(new), 2, 8, generator=g)
    output = torch.empty_like(query)
    lens = torch.tensor(prefix) + torch.tensor(new)
    run_sdpa_forward_extend(
        None,
        query,
        output,
        k_cache,
        v_cache,
        req_to_token,
        requests,
        lens,
        torch.tensor(prefix),
        torch.tensor(new),
        scaling=0.3,
        enable_gqa=True,
        causal=True,
    )
    start = 0
    for request, p, n in zip(requests.tolist(), prefix, new, strict=True):
        where = req_to_token[request, : p + n].long()
        want = softmax_attention(
            query[start : start + n].transpose(0, 1),
            k_cache[where].transpose(0, 1),
            v_cache[where].transpose(0, 1),
            p,
            0.3,
            None,
        )
        got = output[start : start + n].transpose(0, 1)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        start += n

"""Attention of a prefill's new queries over prefix and new keys, in plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Rows of queries per call when a prefix is present: bounds the mask (rows * keys) and skips the
# keys to the right of the block.
_QUERY_BLOCK = 256


def extend_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix_len: int,
    scaling: float | None,
    causal: bool = True,
    sliding_window_size: int | None = None,
) -> Tensor:
    """Attention of the last tokens of one sequence.

    Query i stands at position ``prefix_len + i`` and sees the keys up to it, with a sliding
    window only those at most `sliding_window_size` positions back.

    Args:
        query: (heads, new_tokens, head_dim).
        key: (kv_heads, prefix_len + new_tokens, head_dim).
        value: (kv_heads, prefix_len + new_tokens, value_dim).

    Returns:
        (heads, new_tokens, value_dim).
    """
    gqa = query.shape[0] != key.shape[0]
    new_tokens = query.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return scaled_dot_product_attention(
            q[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=is_causal,
            scale=scaling,
            enable_gqa=gqa,
        )[0]

    if not causal:
        return attend(query, key, value, None, False)
    if prefix_len == 0 and sliding_window_size is None:
        return attend(query, key, value, None, True)
    blocks = []
    for first in range(0, new_tokens, _QUERY_BLOCK):
        last = min(first + _QUERY_BLOCK, new_tokens)
        end = prefix_len + last
        position = torch.arange(prefix_len + first, end)[:, None]
        keys = torch.arange(end)
        mask = keys <= position
        if sliding_window_size is not None:
            mask &= keys >= position - sliding_window_size
        blocks.append(attend(query[:, first:last], key[:, :end], value[:, :end], mask, False))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def run_sdpa_forward_extend(
    self,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    encoder_lens: Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> Tensor:
    """Method of SGLang's torch-native attention backend, for the new queries only.

    The method it replaces pads the queries to the whole sequence, so that a prefix hit saves
    nothing.

    Args:
        query: (tokens, heads, head_dim), the new tokens of all sequences.
        output: (tokens, heads, value_dim), written in place.
        k_cache, v_cache: (pool tokens, kv_heads, head_dim or value_dim).
        req_to_token: (requests, positions) pool index of each position.
        seq_lens, extend_prefix_lens, extend_seq_lens: (sequences,), all tokens, those already in
            the pool before this pass, and the new ones.

    Raises:
        NotImplementedError: for encoder-decoder models.
    """
    if encoder_lens is not None or is_cross_attn:
        raise NotImplementedError("encoder-decoder models are not supported on CPU")
    if sliding_window_size is not None and sliding_window_size < 0:
        sliding_window_size = None
    start = 0
    rows = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_prefix_lens.tolist(),
        extend_seq_lens.tolist(),
        strict=True,
    )
    for request, seq_len, prefix_len, new_tokens in rows:
        end = start + new_tokens
        where = req_to_token[request, :seq_len].long()
        key = k_cache.index_select(0, where).to(query.dtype).transpose(0, 1)
        value = v_cache.index_select(0, where).to(query.dtype).transpose(0, 1)
        output[start:end] = extend_attention(
            query[start:end].transpose(0, 1),
            key,
            value,
            prefix_len,
            scaling,
            causal,
            sliding_window_size,
        ).transpose(0, 1)
        start = end
    return output

"""Depthwise causal convolution of the Mamba mixers, in plain torch.

Signatures are those by which SGLang's mixers call the accelerator kernels, so the
functions here can be bound in their place.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

PAD_SLOT_ID = -1


def _wants_silu(activation: bool | str | None) -> bool:
    if activation in (None, False):
        return False
    if activation in (True, "silu", "swish"):
        return True
    raise ValueError(f"activation must be None, 'silu' or 'swish', not {activation!r}")


def _convolve(window: Tensor, weight: Tensor, bias: Tensor | None, act: bool) -> Tensor:
    """Convolve along the second-last axis.

    In double precision, so that the rounded value at a token does not depend on how its sequence
    was cut into calls: torch's vector and scalar loops differ in the last bit.

    Args:
        window: (..., width - 1 + tokens, dim).
        weight: (dim, width).
        bias: (dim,) or None.

    Returns:
        (..., tokens, dim), float64.
    """
    width = weight.shape[1]
    tokens = window.shape[-2] - width + 1
    taps = weight.double().t().contiguous()
    values = window.double()
    out = values[..., :tokens, :] * taps[0]
    if bias is not None:
        out += bias.double()
    for k in range(1, width):
        out += values[..., k : k + tokens, :] * taps[k]
    return silu(out, inplace=True) if act else out


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    conv_states: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    seq_lens_cpu: Sequence[int] | None = None,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: bool | str | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    **_unused,
) -> Tensor:
    """Convolve a batch of sequences that lie one after another (prefill).

    Args:
        x: (dim, tokens); sequence i is ``x[:, query_start_loc[i]:query_start_loc[i + 1]]``.
        weight: (dim, width).
        bias: (dim,) or None.
        conv_states: (slots, dim, >= width - 1), the last inputs of each slot's sequence. Read
            where ``has_initial_state`` is set, and always overwritten with the new last inputs.
        query_start_loc: (sequences + 1,).
        seq_lens_cpu: the sequences' lengths; spares a read of `query_start_loc`.
        cache_indices: (sequences,) slot of each sequence; `pad_slot_id` means none. Without it
            sequence i uses slot i.
        has_initial_state: (sequences,) bool, or None if every sequence starts from nothing.

    Returns:
        (dim, tokens) of x's dtype; tokens beyond the last sequence are zero.
    """
    act = _wants_silu(activation)
    dim, padded_tokens = x.shape
    history_len = weight.shape[1] - 1
    if seq_lens_cpu is None:
        if query_start_loc is None:
            seq_lens_cpu = [padded_tokens]
        else:
            seq_lens_cpu = query_start_loc.diff().tolist()
    count = len(seq_lens_cpu)
    lens = torch.as_tensor(seq_lens_cpu, dtype=torch.long)
    tokens = int(lens.sum())
    x_by_token = x.t()[:tokens]

    slots = rows = None
    history = x.new_zeros(count, history_len, dim)
    if conv_states is not None:
        slots = torch.arange(count) if cache_indices is None else cache_indices[:count].long()
        rows = slots != pad_slot_id
        if has_initial_state is not None:
            keep = has_initial_state[:count] & rows
            if keep.any():
                past = conv_states[slots[keep], :, conv_states.shape[2] - history_len :]
                history[keep] = past.transpose(1, 2).to(x.dtype)

    # Each sequence is laid out behind its own history; outputs whose window straddles two
    # sequences are computed and dropped, which is cheaper than a loop.
    seq_of_token = torch.repeat_interleave(torch.arange(count), lens, output_size=tokens)
    out_rows = torch.arange(tokens) + seq_of_token * history_len
    window = x.new_empty(tokens + count * history_len, dim)
    window[out_rows + history_len] = x_by_token
    ends = lens.cumsum(0)
    first_rows = ends - lens + torch.arange(count) * history_len
    window[first_rows[:, None] + torch.arange(history_len)] = history

    full = _convolve(window, weight, bias, act)
    out = x.new_zeros(padded_tokens, dim)
    out[:tokens] = full if count == 1 else full[out_rows]

    if conv_states is not None:
        last_rows = (first_rows + lens)[:, None] + torch.arange(history_len)
        last = window[last_rows].transpose(1, 2).to(conv_states.dtype)
        conv_states[slots[rows], :, conv_states.shape[2] - history_len :] = last[rows]
    return out.t()


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: bool | str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    num_accept_tokens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    pad_slot_id: int = PAD_SLOT_ID,
    **_unused,
) -> Tensor:
    """Advance each sequence by one or a few tokens (decode).

    Args:
        x: (batch, dim) or (batch, dim, tokens).
        conv_state: (slots, dim, >= width - 1); shifted in place.
        weight: (dim, width).
        conv_state_indices: (batch,) slot of each row; `pad_slot_id` marks a padded row, whose
            output is zero. Without it row i uses slot i.

    Returns:
        x's shape and dtype.

    Raises:
        NotImplementedError: for the arguments of speculative decoding and of circular states,
            which the CPU platform does not serve.
    """
    if cache_seqlens is not None or num_accept_tokens is not None:
        raise NotImplementedError("circular convolution states are not supported on CPU")
    if intermediate_conv_window is not None:
        raise NotImplementedError("speculative decoding is not supported on CPU")
    act = _wants_silu(activation)
    inputs = x.unsqueeze(-1) if x.dim() == 2 else x
    history_len = weight.shape[1] - 1
    if conv_state_indices is None:
        slots = torch.arange(inputs.shape[0])
    else:
        slots = conv_state_indices[: inputs.shape[0]].long()
    real = slots != pad_slot_id
    if bool(real.all()):
        out = _update_rows(inputs, conv_state, weight, bias, act, slots, history_len)
    else:
        out = torch.zeros_like(inputs)
        out[real] = _update_rows(
            inputs[real], conv_state, weight, bias, act, slots[real], history_len
        )
    return out.squeeze(-1) if x.dim() == 2 else out


def _update_rows(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: bool,
    slots: Tensor,
    history_len: int,
) -> Tensor:
    state = conv_state[slots]
    joined = torch.cat([state, x.to(state.dtype)], dim=-1)
    conv_state[slots] = joined[..., x.shape[-1] :]
    window = torch.cat([state[..., state.shape[-1] - history_len :].to(x.dtype), x], dim=-1)
    return _convolve(window.transpose(1, 2), weight, bias, act).transpose(1, 2).to(x.dtype)

"""The recurrences token by token in float64, written for clarity: what the kernels must equal."""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def mamba2(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """State of one sequence after its tokens.

    Args:
        state: (heads, head_dim, d_state) before the first token.
        x: (tokens, heads, head_dim).
        dt: (tokens, heads), final: bias, softplus and limit applied.
        A: (heads,).
        B: (tokens, groups, d_state).
    """
    state = state.double()
    per_group = x.shape[1] // B.shape[1]
    for t in range(len(x)):
        step = dt[t].double()
        b = B[t].double().repeat_interleave(per_group, dim=0)
        state = state * torch.exp(step * A.double())[:, None, None]
        state = state + (step[:, None] * x[t].double())[..., None] * b[:, None, :]
    return state


def mamba2_step(
    dt: Tensor, dt_bias: Tensor | None, use_softplus: bool, limit: tuple[float, float]
) -> Tensor:
    """(..., heads) raw time steps to final ones."""
    step = dt.double()
    if dt_bias is not None:
        step = step + dt_bias.double()
    if use_softplus:
        step = softplus(step)
    return step.clamp(*limit)


def delta_rule(state: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """State of one sequence after its tokens.

    Args:
        state: (value_heads, value_dim, key_dim) before the first token.
        k: (tokens, key_heads, key_dim), as they enter the rule.
        v: (tokens, value_heads, value_dim).
        log_decay: (tokens, value_heads) or (tokens, value_heads, key_dim).
        beta: (tokens, value_heads), between 0 and 1.
    """
    state = state.double()
    per_key_head = v.shape[1] // k.shape[1]
    for t in range(len(k)):
        key = k[t].double().repeat_interleave(per_key_head, dim=0)
        decay = torch.exp(log_decay[t].double()).view(v.shape[1], 1, -1)
        state = state * decay
        predicted = torch.einsum("hvk,hk->hv", state, key)
        update = beta[t].double()[:, None] * (v[t].double() - predicted)
        state = state + torch.einsum("hv,hk->hvk", update, key)
    return state


def unit_length(k: Tensor) -> Tensor:
    """Keys divided by their length, with SGLang's epsilon."""
    k = k.double()
    return k / torch.sqrt(k.square().sum(-1, keepdim=True) + 1e-6)


def kda_log_decay(
    a: Tensor, A_log: Tensor, dt_bias: Tensor | None, lower_bound: float | None
) -> Tensor:
    """(..., heads, key_dim) raw gates to log decays."""
    rate = torch.exp(A_log.double()).view(-1, 1)
    raw = a.double() + (0.0 if dt_bias is None else dt_bias.double().view(a.shape[-2:]))
    if lower_bound is None:
        return -rate * softplus(raw)
    return lower_bound * torch.sigmoid(rate * raw)


def conv_window(x: Tensor, start: int, end: int, earlier: Tensor | None, history: int) -> Tensor:
    """Last inputs of a convolution before `end`.

    Args:
        x: (tokens, dim).
        start: first token of the sequence.
        end: the window ends before this token.
        earlier: (dim, history), the window before `start`; None for zeros.

    Returns:
        (dim, history).
    """
    columns = []
    for token in range(end - history, end):
        if token >= start:
            columns.append(x[token].double())
        elif earlier is not None:
            columns.append(earlier[:, history + token - start].double())
        else:
            columns.append(torch.zeros_like(x[0]).double())
    return torch.stack(columns, dim=1)

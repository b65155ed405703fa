"""The small model's forward pass over one sequence, with its caches in the open.

It rounds where SGLang rounds and uses the same torch operators, so that a test can hand it a wrong
state and watch the logprobs without a server. Matrix products are taken in float64 and rounded
once: bfloat16 ones are many times slower on most CPUs, and equal but for rare last bits.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from sglang_hybrid.kernels.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from sglang_hybrid.kernels.extend_attention import extend_attention
from sglang_hybrid.kernels.ssd_scan import mamba_chunk_scan_combined
from sglang_hybrid.kernels.state_update import selective_state_update
from torch import Tensor
from torch.nn.functional import silu

from sglang_hybrid.model import make_model as mm


@dataclass
class Cache:
    """What a request holds after its first `length` tokens."""

    length: int
    conv: dict[int, Tensor] = field(default_factory=dict)  # layer -> (1, dim, width - 1)
    ssm: dict[int, Tensor] = field(default_factory=dict)  # layer -> (1, heads, head_dim, d_state)
    keys: dict[int, Tensor] = field(default_factory=dict)  # layer -> (kv_heads, length, head_dim)
    values: dict[int, Tensor] = field(default_factory=dict)

    def clone(self) -> "Cache":
        return copy.deepcopy(self)

    def with_state_of(self, other: "Cache") -> "Cache":
        """This cache's keys and values with the recurrent states of another one."""
        mixed = self.clone()
        mixed.conv = copy.deepcopy(other.conv)
        mixed.ssm = copy.deepcopy(other.ssm)
        return mixed


class ReferenceModel:
    """Teacher-forced and greedy passes of a checkpoint written by `make_small_model`."""

    def __init__(self, weights: dict[str, Tensor]):
        self.w = weights
        self._wide = {k: v.double().t() for k, v in weights.items() if v.dim() == 2}

    @classmethod
    def load(cls, folder: Path) -> "ReferenceModel":
        return cls(load_file(folder / "model.safetensors"))

    def empty(self) -> Cache:
        cache = Cache(0)
        for i, kind in enumerate(mm.LAYER_TYPES):
            if kind == "mamba":
                dim = self.w[f"model.layers.{i}.mamba.conv1d.weight"].shape[0]
                cache.conv[i] = torch.zeros(1, dim, mm.D_CONV - 1, dtype=torch.bfloat16)
                cache.ssm[i] = torch.zeros(1, mm.MAMBA_HEADS, mm.MAMBA_HEAD_DIM, mm.D_STATE)
            else:
                shape = (mm.KV_HEADS, 0, mm.HIDDEN // mm.HEADS)
                cache.keys[i] = torch.zeros(shape, dtype=torch.bfloat16)
                cache.values[i] = torch.zeros(shape, dtype=torch.bfloat16)
        return cache

    def zeroed(self, cache: Cache) -> Cache:
        """`cache` with its recurrent states set to zero."""
        return cache.with_state_of(self.empty())

    @torch.inference_mode()
    def extend(self, ids: list[int], cache: Cache) -> Tensor:
        """Consume `ids` in one pass, changing `cache`; returns logits (tokens, vocabulary)."""
        h = self.w["model.embed_tokens.weight"][torch.tensor(ids)]
        for i, kind in enumerate(mm.LAYER_TYPES):
            name = f"model.layers.{i}."
            x = self._norm(h, self.w[name + "input_layernorm.weight"])
            mixer = self._mamba if kind == "mamba" else self._attention
            h = h + mixer(i, x, cache)
            x = self._norm(h, self.w[name + "post_attention_layernorm.weight"])
            gate, up = self._linear(x, name + "shared_mlp.input_linear.weight").chunk(2, -1)
            h = h + self._linear(silu(gate) * up, name + "shared_mlp.output_linear.weight")
        cache.length += len(ids)
        x = self._norm(h, self.w["model.norm.weight"])
        # The platform asks SGLang for a float32 output head.
        return (x.double() @ self._wide["lm_head.weight"]).float()

    def greedy(self, ids: list[int], cache: Cache, tokens: int) -> tuple[list[int], Tensor]:
        """Continue greedily after `ids`; returns the tokens and the logits they were taken from
        (tokens, vocabulary). `cache` is changed."""
        logits = [self.extend(ids, cache)[-1]]
        out = [int(logits[0].argmax())]
        while len(out) < tokens:
            logits.append(self.extend(out[-1:], cache)[-1])
            out.append(int(logits[-1].argmax()))
        return out, torch.stack(logits)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return (x.double() @ self._wide[name]).to(x.dtype)

    @staticmethod
    def _norm(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * weight.float()).to(x.dtype)

    def _attention(self, layer: int, x: Tensor, cache: Cache) -> Tensor:
        name = f"model.layers.{layer}.self_attn."
        head_dim = mm.HIDDEN // mm.HEADS
        q, k, v = (
            self._linear(x, name + p + ".weight").view(len(x), -1, head_dim).transpose(0, 1)
            for p in ("q_proj", "k_proj", "v_proj")
        )
        past = cache.keys[layer].shape[1]
        keys = cache.keys[layer] = torch.cat([cache.keys[layer], k], dim=1)
        values = cache.values[layer] = torch.cat([cache.values[layer], v], dim=1)
        out = extend_attention(q, keys, values, past, head_dim**-0.5)
        out = out.transpose(0, 1).reshape(len(x), mm.HIDDEN)
        return self._linear(out, name + "o_proj.weight")

    def _mamba(self, layer: int, x: Tensor, cache: Cache) -> Tensor:
        name = f"model.layers.{layer}.mamba."
        tokens = len(x)
        inner = mm.MAMBA_HEADS * mm.MAMBA_HEAD_DIM
        grouped = mm.GROUPS * mm.D_STATE
        gate, xbc, dt = self._linear(x, name + "in_proj.weight").split(
            [inner, inner + 2 * grouped, mm.MAMBA_HEADS], dim=-1
        )
        conv_weight = self.w[name + "conv1d.weight"][:, 0]
        conv_bias = self.w[name + "conv1d.bias"]
        A = -self.w[name + "A_log"].float().exp()
        D, dt_bias = self.w[name + "D"], self.w[name + "dt_bias"]
        # A cached sequence's single token is decoded, as a server would do.
        if tokens == 1 and cache.length > 0:
            xbc = causal_conv1d_update(xbc, cache.conv[layer], conv_weight, conv_bias, "silu")
        else:
            xbc = causal_conv1d_fn(
                xbc.t(),
                conv_weight,
                conv_bias,
                conv_states=cache.conv[layer],
                seq_lens_cpu=[tokens],
                has_initial_state=torch.tensor([cache.length > 0]),
            ).t()
        hidden, B, C = xbc.split([inner, grouped, grouped], dim=-1)
        heads = (mm.MAMBA_HEADS, mm.MAMBA_HEAD_DIM)
        y = torch.empty(tokens, *heads, dtype=x.dtype)
        if tokens == 1 and cache.length > 0:
            selective_state_update(
                cache.ssm[layer],
                hidden.view(1, *heads),
                dt[:, :, None].expand(-1, -1, heads[1]),
                A[:, None, None].expand(*heads, mm.D_STATE),
                B.view(1, mm.GROUPS, mm.D_STATE),
                C.view(1, mm.GROUPS, mm.D_STATE),
                D[:, None].expand(heads),
                dt_bias=dt_bias[:, None].expand(heads),
                dt_softplus=True,
                out=y,
            )
        else:
            _, states, _ = mamba_chunk_scan_combined(
                hidden.reshape(1, tokens, *heads),
                dt[None],
                A,
                B.reshape(1, tokens, mm.GROUPS, mm.D_STATE),
                C.reshape(1, tokens, mm.GROUPS, mm.D_STATE),
                mm.MAMBA_CHUNK,
                D=D,
                dt_bias=dt_bias,
                dt_softplus=True,
                initial_states=cache.ssm[layer],
                cu_seqlens=torch.tensor([0, tokens]),
                return_varlen_states=True,
                return_track_states=True,
                state_dtype=torch.float32,
                out=y[None],
            )
            cache.ssm[layer] = states
        y = y.view(tokens, inner).float() * silu(gate.float())
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        y = self.w[name + "norm.weight"] * y.to(x.dtype)
        return self._linear(y, name + "out_proj.weight")

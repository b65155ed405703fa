"""SGLang's chunk kernels, run by Triton's interpreter, against the recurrences.

A script of its own: ``TRITON_INTERPRET`` must be set before triton is first imported. Prints one
line of JSON: check -> largest error, in units of the largest value of the states.
"""

import contextlib
import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import op as fla_op
from sglang_hybrid.kernels.advance_gdn import advance_gdn
from sglang_hybrid.kernels.advance_kda import advance_kda
from sglang_hybrid.kernels.advance_mamba2 import advance_mamba2
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from bench.gpu import checkpoint_cases as cases
from bench.gpu.shapes import DeltaShape, Mamba2Shape

# Tuning measures time on a device: keep each kernel's first configuration instead.
_tuned_init = Autotuner.__init__


def _untuned_init(self, fn, arg_names, configs, *args, **kwargs):
    _tuned_init(self, fn, arg_names, configs[:1], *args, **kwargs)


Autotuner.__init__ = _untuned_init


# The interpreter keeps bfloat16 values as integers of 16 bits and multiplies those.
_plain_dot = InterpreterBuilder.create_dot


def _widened(operand):
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    data = (operand.data.astype(np.uint32) << 16).view(np.float32)
    return TensorHandle(data, tl.float32)


def _dot(self, a, b, *args):
    return _plain_dot(self, _widened(a), _widened(b), *args)


InterpreterBuilder.create_dot = _dot


def _late_bound(name):
    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)


# These kernels call functions of triton.language under names of their own, bound before the
# interpreter replaces them.
for _name in ("exp", "exp2", "log", "log2", "gather"):
    setattr(fla_op, _name, _late_bound(_name))

CHUNK = 16
LENGTHS = [21, 11, 16, 3]
BOUNDS = [sum(LENGTHS[:i]) for i in range(len(LENGTHS) + 1)]
CU_SEQLENS = torch.tensor(BOUNDS, dtype=torch.int32)
# Of (sequence, position): several in one sequence; on the flat grid (16, 32), also where the
# sequence begins there; one behind a start; within a first chunk that does not begin on the
# grid; at ends of sequences.
TRACKED = [(0, 5), (0, 16), (0, 20), (0, 21), (1, 22), (1, 25), (1, 32), (2, 33), (2, 48), (3, 50)]


def saves_of_tracked():
    """What a server's forward with these rows would save."""
    from sglang_hybrid.adapter.forward_saves import ForwardSaves
    from sglang_hybrid.adapter.guards import Guard
    from sglang_hybrid.core.chunk_plan import ChunkPlan

    plan = ChunkPlan(chunk_tokens=CHUNK, window_tokens=3)
    for row, length in enumerate(LENGTHS):
        plan.add_row(length, [end - BOUNDS[row] for at, end in TRACKED if at == row])
    pool = SimpleNamespace(translate_mamba_indices=lambda slots: slots)
    saves = ForwardSaves(pool, plan, Guard("saving", "", is_strict=True))
    for slot in range(len(TRACKED)):
        saves.add_inside(torch.tensor([slot]))
    saves.seal()
    saves.begin()
    return saves


def mamba_scan(initial: bool, dtype: torch.dtype) -> dict[str, float]:
    """Errors of the tracked states, and of chunk states advanced to the same positions.

    The scan is called as the server's hooks have it called.
    """
    from sglang.kernels.ops.mamba.triton_ops import ssd_combined
    from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined
    from sglang.srt.layers.attention.mamba.mamba2_metadata import Mamba2Metadata

    from sglang_hybrid.adapter import saving_layers

    shape = Mamba2Shape(2, 16, 1, 16, chunk=CHUNK)
    case = cases.mamba2_case(cases.Maker(3), shape, 1, BOUNDS[-1], dtype, torch.float32)
    start = torch.randn(len(LENGTHS), *shape.state_shape) if initial else None
    indices, offsets = Mamba2Metadata._query_start_loc_to_chunk_indices_offsets(
        CU_SEQLENS, CHUNK, BOUNDS[-1]
    )
    seqs, ends = (torch.tensor(t) for t in zip(*TRACKED, strict=True))
    saves, plain = saves_of_tracked(), ssd_combined._track_states_at
    calls = []

    def one_turn(*args):
        calls.append(args[-2].tolist())
        return plain(*args)

    ssd_combined._track_states_at = functools.partial(saving_layers.scan_states, one_turn)
    saving_layers.active = lambda: saves
    states, _, tracked = mamba_chunk_scan_combined(
        case["x"],
        case["dt"],
        case["A"],
        case["B"],
        case["B"].clone(),
        chunk_size=CHUNK,
        dt_bias=case["dt_bias"],
        dt_softplus=True,
        initial_states=start,
        seq_idx=torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS)).int()[None],
        chunk_indices=indices,
        chunk_offsets=offsets,
        cu_seqlens=CU_SEQLENS,
        out=torch.empty_like(case["x"]),
        return_varlen_states=True,
        return_track_states=True,
        track_seq_idx=saves.rows,
        track_end_locs=saves.ends,
        state_dtype=torch.float32,
    )
    ssd_combined._track_states_at = plain
    assert calls == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]  # no row twice
    before = torch.zeros(len(LENGTHS), *shape.state_shape) if start is None else start
    # From the sequence's start where no point of the grid lies between, else from there.
    first = CU_SEQLENS.long()[seqs]
    grid = (ends - 1) // CHUNK
    from_grid = grid * CHUNK > first
    case.update(
        h=torch.cat([before, states[0]]),
        h_index=torch.where(from_grid, len(LENGTHS) + grid, seqs),
        starts=torch.where(from_grid, grid * CHUNK, first),
    )
    case["lengths"] = ends - case["starts"]
    advanced = advance_mamba2(**case)
    case.update(h=before, h_index=seqs, starts=first, lengths=ends - first)
    want = cases.expected_mamba2(case)
    return {
        "tracked": cases.relative_error(tracked[0], want),
        "advanced": cases.relative_error(advanced, want),
    }


def delta_states(extend, advance, case: dict, shape: DeltaShape, expected) -> dict[str, float]:
    """Errors of ``h`` advanced into a chunk, and of SGLang's final state when it is cut there."""
    length, cut = 150, 100
    pool = torch.randn(3, *shape.state_shape)
    initial = pool.clone()
    h = extend(pool, case, length)
    cut_pool = initial.clone()
    extend(cut_pool, case, cut)
    state = {
        **case,
        "h": h[0],
        "h_index": torch.tensor([cut // 64]),
        "starts": torch.tensor([cut // 64 * 64]),
        "lengths": torch.tensor([cut % 64]),
    }
    advanced = advance(**state)
    state.update(h=initial[1:2], h_index=torch.tensor([0]), starts=torch.tensor([0]))
    want = expected({**state, "lengths": torch.tensor([cut])})
    return {
        "advanced": cases.relative_error(advanced, want),
        "cut": cases.relative_error(cut_pool[1:2], want),
    }


def gdn() -> dict[str, float]:
    from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule

    shape = DeltaShape(1, 2, 64, 64, per_channel=False)
    case = cases.gdn_case(cases.Maker(5), shape, 1, 150, torch.float16, torch.float32)

    def extend(pool, case, length):
        _, _, h = chunk_gated_delta_rule(
            q=case["k"][:, :length],
            initial_state=pool,
            initial_state_indices=torch.tensor([1], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, length]),
            use_qk_l2norm_in_kernel=True,
            **{name: case[name][:, :length].contiguous() for name in ("k", "v", "g", "beta")},
        )
        return h

    return delta_states(extend, advance_gdn, case, shape, cases.expected_gdn)


def kda(lower_bound: float | None) -> dict[str, float]:
    from sglang.kernels.ops.attention.fla import kda as sglang_kda

    # The interpreter cannot run the kernel of the outputs, and states do not need it.
    sglang_kda.chunk_gla_fwd_o_gk = lambda **args: args["o"]
    shape = DeltaShape(1, 1, 64, 64, per_channel=True)
    case = cases.kda_case(cases.Maker(7), shape, 1, 150, torch.float16, torch.float32, lower_bound)
    # The kernels keep inverse decays of up to 16 tokens in the activations' type: in float16 only
    # slow decays fit, log decays of less than 0.5 per token.
    case["A_log"] += cases.SLOW if lower_bound else -1
    # SGLang's own sigmoid calls a CUDA library, which the interpreter does not have.
    case.update(beta=torch.sigmoid(case["beta"].float()), beta_is_raw=False)

    def extend(pool, case, length):
        _, h = sglang_kda.chunk_kda(
            q=case["k"][:, :length],
            k=case["k"][:, :length],
            v=case["v"][:, :length],
            g=case["a"][:, :length],
            beta=case["beta"][:, :length],
            initial_state=pool,
            initial_state_indices=torch.tensor([1], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, length]),
            use_qk_l2norm_in_kernel=True,
            A_log=case["A_log"],
            dt_bias=case["dt_bias"],
            lower_bound=lower_bound,
            output_intermediate_states=True,
        )
        return h

    return delta_states(extend, advance_kda, case, shape, cases.expected_kda)


if __name__ == "__main__":
    # The launchers ask torch.cpu for a device context, which does not exist there.
    torch.cpu.device = lambda index: contextlib.nullcontext()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    errors = {
        "mamba2 fresh": mamba_scan(False, torch.float32),
        "mamba2 resumed": mamba_scan(True, torch.float32),
        "mamba2 float16": mamba_scan(True, torch.float16),
        "gdn": gdn(),
        "kda softplus": kda(None),
        "kda bounded": kda(-0.5),
    }
    print(json.dumps(errors))

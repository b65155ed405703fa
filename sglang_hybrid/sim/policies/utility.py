"""Log utility: the default of `--cache hybrid-marconi`; see `core.scores`.

FLOPs per byte, hits and age as factors rather than summands, so that no normalisation over
a changing set of candidates is needed; superseded states of a conversation count a tenth.
"""

from __future__ import annotations

from sglang_hybrid.core import scores
from sglang_hybrid.sim.jit import compiled_with

loss = compiled_with(scores.utility_loss)

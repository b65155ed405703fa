"""Compiled code is kept, and it is known whether there is any."""

import os
import subprocess
import sys

from sglang_hybrid.core.presets import load_model
from sglang_hybrid.sim.admission import parse_admission
from sglang_hybrid.sim.policy_spec import parse_policy
from sglang_hybrid.sim.replay import SerialReplay
from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.union_tree import compile_trace

PROGRAM = """
from sglang_hybrid.sim.engine.run import run_serial
from sglang_hybrid.sim.jit import is_cached
print(is_cached(run_serial))
"""


def is_cached_elsewhere(**environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_later_process_finds_what_this_one_compiled(tmp_path):
    trace = load_trace("gen:article-a").head(3)
    costs = load_model("paper-7b").costs
    admission = parse_admission("marconi")
    SerialReplay(compile_trace(trace), costs, parse_policy("lru"), admission, None).advance(3)
    assert is_cached_elsewhere() == "True"
    assert is_cached_elsewhere(NUMBA_CACHE_DIR=str(tmp_path)) == "False"

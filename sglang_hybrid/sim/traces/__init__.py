"""Readers and generators of request traces; docs/traces.md describes them."""

from sglang_hybrid.sim.traces.generators import article_a, article_b, shared_prefix
from sglang_hybrid.sim.traces.load import load_trace
from sglang_hybrid.sim.traces.native import write_trace
from sglang_hybrid.sim.traces.source import Problem, TraceError, TraceReport

__all__ = [
    "Problem",
    "TraceError",
    "TraceReport",
    "article_a",
    "article_b",
    "load_trace",
    "shared_prefix",
    "write_trace",
]

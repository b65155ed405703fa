"""Caches side by side on a server: `python -m bench.serving` (docs/benchmarks.md)."""

"""Replay of request traces: what a cache would do, without a GPU, torch or SGLang."""

"""Costs, scores and victim index. Imports neither torch nor sglang."""

"""Losses of the eviction policies, one file each. The candidate of lowest loss goes.

They are compiled, and are called for each compared candidate.
"""

"""Flags and limits of the servers of these tests."""

import json

CONFIG = {"policy": "utility", "min_gain_tokens": 1, "strict": True}
OURS = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(CONFIG)]
ENVIRONMENT = {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}
RUNNING, QUEUED = 2, 2
"""Requests that the crowded server runs and queues at most."""

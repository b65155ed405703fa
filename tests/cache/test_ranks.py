"""Ranks decide alike: the same operations, whatever else differs between two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("rank_stream.py")


def rank(hash_seed: int, lead: int) -> subprocess.Popen:
    """A process that serves the stream; decisions reach it ``lead`` operations ahead."""
    command = [sys.executable, str(SCRIPT), "--seed", "3", "--lead", str(lead)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_ranks_evict_the_same_nodes_in_the_same_order():
    """sglang #22759: ranks whose wall clocks differed evicted different nodes and hung."""
    # Another hash seed, another start on the clock, and decisions that come earlier.
    processes = [rank(1, 0), rank(4_000_000, 37)]
    victims = []
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
        victims.append(json.loads(output.splitlines()[-1]))
    assert victims[0] == victims[1]
    assert len(victims[0]) > 2000

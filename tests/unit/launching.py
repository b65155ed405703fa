"""Runs `launcher_cases` in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("launcher_cases.py")
CACHE = ("--cache", "hybrid-marconi")


def run_cases(cases, **env):
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **env},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUTCOMES ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[-1].removeprefix("OUTCOMES "))

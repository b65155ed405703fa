"""Shared by the tests of hostile input."""

import sys
from pathlib import Path

# The drivers of a real cache and the small traces are those of their own tests.
for folder in ("cache", "sim", "unit"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

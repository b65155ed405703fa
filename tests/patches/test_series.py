"""The series for SGLang: files shared with the plugin are the same, and so are the decisions.

The patched tree is another `sglang`, so what runs on it runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import carried
import pytest

pytestmark = pytest.mark.patches

HERE = Path(__file__).resolve().parent


def decisions(*sides: str, sglang: Path | None = None) -> dict:
    """What `decisions.py` prints for ``sides``, on SGLang as installed or as in ``sglang``."""
    paths = [str(HERE.parent / "cache"), *([str(sglang / "python")] if sglang else [])]
    done = subprocess.run(
        (sys.executable, HERE / "decisions.py", *sides),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def patched(patched_tree) -> dict:
    return decisions("native", "stock", sglang=patched_tree)


@pytest.fixture(scope="module")
def installed() -> dict:
    return decisions("plugin", "stock")


def test_carried_files_are_core_s(patched_tree):
    for name, folder in carried.FILES.items():
        there = (patched_tree / folder / f"{name}.py").read_text()
        assert there == carried.upstream_text(name), name


def test_same_decisions_as_the_plugin(patched, installed):
    """The same hits, and the same states evicted in the same order."""
    native, plugin = patched["native"], installed["plugin"]
    assert native.keys() == plugin.keys()
    for case, expected in plugin.items():
        found = native[case]
        assert len(expected["gone"]) > 300 < sum(expected["hits"])
        pairs = zip(found["gone"], expected["gone"], strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        assert first is None, (case, found["gone"][first], expected["gone"][first])
        assert found == expected, case
    # Cases that decide alike would not tell a policy from another.
    assert len({json.dumps(each["gone"]) for each in plugin.values()}) == len(plugin)


def test_the_default_order_is_unchanged(patched, installed):
    found, expected = patched["stock"], installed["stock"]
    assert all(len(each["gone"]) > 300 for each in expected.values())
    assert found == expected

"""The series for SGLang: files shared with the plugin are the same, and so are the decisions.

The patched tree is another `sglang`, so what runs on it runs in a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.patches

HERE = Path(__file__).resolve().parent
SERIES = HERE.parent.parent / "patches"


def module(name: str):
    sys.path.insert(0, str(SERIES))
    try:
        spec = importlib.util.spec_from_file_location(name, SERIES / f"{name}.py")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    finally:
        sys.path.remove(str(SERIES))


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """SGLang's tree with the whole series applied."""
    tools, dest = module("tree"), tmp_path_factory.mktemp("patched") / "tree"
    tools.build(dest, tools.patches())
    return dest


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
def patched(tree) -> dict:
    return decisions("native", "stock", sglang=tree)


@pytest.fixture(scope="module")
def installed() -> dict:
    return decisions("plugin", "stock")


def test_carried_files_are_core_s(tree):
    carried = module("carried")
    for name, folder in carried.FILES.items():
        there = (tree / folder / f"{name}.py").read_text()
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

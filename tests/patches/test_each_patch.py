"""The series applies patch by patch to SGLang's package, and each is green on those before it."""

import subprocess
import sys

import pytest
import tree

pytestmark = [pytest.mark.patches, pytest.mark.timeout(1800)]


def test_each_patch_is_green_on_those_before_it(tmp_path):
    command = (sys.executable, tree.SERIES / "check.py", tmp_path / "tree")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert not done.returncode, done.stdout[-6000:]
    assert f"patches: {len(tree.patches())} applied and tested" in done.stdout

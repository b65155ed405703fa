"""The series applies patch by patch to SGLang's package, and each is green on those before it."""

import subprocess
import sys

import pytest
import tree

pytestmark = [pytest.mark.patches, pytest.mark.timeout(1800)]

NUMBERS = [each.name[:4] for each in tree.patches()]
_MIDDLE = 2 * len(NUMBERS) // 3  # the second part runs the tests of all besides
PARTS = [(NUMBERS[0], NUMBERS[_MIDDLE - 1]), (NUMBERS[_MIDDLE], NUMBERS[-1])]


@pytest.mark.parametrize(("first", "last"), PARTS)
def test_each_patch_is_green_on_those_before_it(first, last, tmp_path):
    command = (sys.executable, tree.SERIES / "check.py", tmp_path / "tree")
    done = subprocess.run(
        (*command, "--first", first, "--last", last),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert not done.returncode, done.stdout[-6000:]
    assert f"patches: {NUMBERS.index(last) + 1} applied" in done.stdout

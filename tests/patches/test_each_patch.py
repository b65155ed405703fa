"""The series applies patch by patch to SGLang's package, and each is green on those before it."""

import itertools
import subprocess
import sys

import pytest
import tree

pytestmark = [pytest.mark.patches, pytest.mark.timeout(1800)]

NUMBERS = [each.name[:4] for each in tree.patches()]
# The last part runs the tests of all besides.
_FIRST = [len(NUMBERS) * part // 20 for part in (0, 6, 11, 16, 20)]
PARTS = [(NUMBERS[first], NUMBERS[end - 1]) for first, end in itertools.pairwise(_FIRST)]


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

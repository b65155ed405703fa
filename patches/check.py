"""Apply the series to the installed package, patch by patch, and run the tests of each.

    python patches/check.py [DEST]

After every patch: it applies without fuzz, all that it touches compiles, its own tests
(`test/registered/**`) pass. After the last one: the tests of all patches.
"""

from __future__ import annotations

import compileall
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tree

_ADDED = re.compile(r"^\+\+\+ b/(\S+\.py)$", re.MULTILINE)
_TITLE = re.compile(r"^Subject: \[PATCH[^\]]*\] (.+(?:\n .+)*)$", re.MULTILINE)


def touched(patch: Path) -> list[str]:
    """Python files that ``patch`` adds or changes, as paths in the tree."""
    return _ADDED.findall(patch.read_text())


def tests_of(patch: Path) -> list[str]:
    return [each for each in touched(patch) if Path(each).name.startswith("test_")]


def run_tests(dest: Path, tests: list[str]) -> None:
    """Run upstream-form tests in one process that imports the patched tree; raises SystemExit."""
    environment = os.environ | {"PYTHONPATH": str(dest / "python")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
    # Neither this repository's settings nor its plugins: the tests are upstream's.
    command += ["-c", os.devnull, "--rootdir", str(dest), "-p", "no:xdist", *tests]
    if subprocess.run(command, cwd=dest, env=environment).returncode:
        raise SystemExit(f"tests failed: {' '.join(tests)}")


def main() -> None:
    if len(sys.argv) > 1:
        check(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="sglang-patched-") as dest:
            check(Path(dest))


def check(dest: Path) -> None:
    start, series = time.monotonic(), tree.patches()
    tree.build(dest, [])
    tests: list[str] = []
    for patch in series:
        if not patch.with_suffix(".md").exists():
            raise SystemExit(f"{patch.name} has no PR text: {patch.with_suffix('.md').name}")
        print(f"{patch.stem}: {_TITLE.search(patch.read_text()).group(1)}", flush=True)
        tree.apply(dest, patch)
        for each in touched(patch):
            if not compileall.compile_file(str(dest / each), quiet=1, force=True):
                raise SystemExit(f"{patch.name}: {each} does not compile")
        own = tests_of(patch)
        if own:
            run_tests(dest, own)
        tests += [each for each in own if each not in tests]
    if len(series) > 1:
        print(f"all {len(series)} patches", flush=True)
        run_tests(dest, tests)
    print(f"patches: {len(series)} applied and tested in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()

"""Puts each deliberate bug into a copy of the repository and sees it caught.

Run as ``make mutants``, or ``python tests/mutants/mutation_check.py [part of a name]``. A bug is
caught when its tests fail; the same tests pass without it (they are run first).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import MUTANTS, Mutant
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
_COPIED = ("sglang_hybrid", "kernels", "tests", "bench", "docs")
_COPIED_FILES = ("pyproject.toml", "setup.py", "README.md")
_TESTS_FAILED = 1
"""Exit status of pytest; others say that it could not run them."""


def run(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def caught_by(folder: Path, mutant: Mutant) -> str | None:
    """The test that failed; None if none did.

    Raises:
        RuntimeError: the tests could not be run.
    """
    file = folder / mutant.file
    source = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied_to(source), encoding="utf-8")
    try:
        result = run(folder, mutant.tests)
    finally:
        file.write_text(source, encoding="utf-8")
    if result.returncode not in (0, _TESTS_FAILED):
        raise RuntimeError(f"{mutant.name}: pytest could not run\n{result.stdout[-3000:]}")
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED ")]
    return failed[-1].split()[1] if failed else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only bugs whose name contains it")
    parser.add_argument(
        "--only-bugs", action="store_true", help="the tests were seen to pass without a bug"
    )
    arguments = parser.parse_args()
    part = arguments.part
    console, survived = Console(width=160), 0
    mutants = [mutant for mutant in MUTANTS if part in mutant.name]
    if not mutants:
        names = "\n".join(mutant.name for mutant in MUTANTS)
        parser.error(f"no bug's name contains {part!r}; there are\n{names}")
    table = Table("bug", "caught by", "s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in _COPIED:
            shutil.copytree(ROOT / each, folder / each)
        for each in _COPIED_FILES:
            shutil.copy(ROOT / each, folder / each)
        # As `setup.py` maps it, for a tree that is not installed.
        (folder / "sglang_hybrid/kernels").symlink_to("../kernels")
        tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        if not arguments.only_bugs and (sound := run(folder, tests)).returncode:
            console.print(f"These tests must pass without a bug:\n{sound.stdout[-3000:]}")
            return 2
        for mutant in mutants:
            start = time.monotonic()
            test = caught_by(folder, mutant)
            survived += test is None
            table.add_row(mutant.name, test or "NOTHING", f"{time.monotonic() - start:.0f}")
            console.print(f"{mutant.name}: {test or 'NOT CAUGHT'}")
    console.print(table, f"{len(mutants) - survived} of {len(mutants)} caught", sep="\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

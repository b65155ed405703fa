"""Apply the series to the installed package, patch by patch, and run the tests of each.

    python patches/check.py [DEST] [--first NNNN] [--last NNNN]

After every patch: it applies without fuzz, all that it touches compiles, its own tests
(`test/registered/**`) pass. After the last of the series: the tests of all patches. Those
before ``--first`` are only applied.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tree

# Tests run in forks of a process that has these; two thirds of the time to import SGLang.
_SLOW_IMPORTS = (
    *("torch", "torchaudio", "torchcodec", "torchvision", "transformers", "triton"),
    *("IPython", "flashinfer", "mistral_common", "networkx", "scipy", "xgrammar"),
    *("fastapi", "huggingface_hub", "openai", "pydantic", "requests", "zmq"),
)

_ADDED = re.compile(r"^\+\+\+ b/(\S+\.py)$", re.MULTILINE)
_TITLE = re.compile(r"^Subject: \[PATCH[^\]]*\] (.+(?:\n .+)*)$", re.MULTILINE)


def touched(patch: Path) -> list[str]:
    """Python files that ``patch`` adds or changes, as paths in the tree."""
    return _ADDED.findall(patch.read_text())


def tests_of(patch: Path) -> list[str]:
    return [each for each in touched(patch) if Path(each).name.startswith("test_")]


def preload() -> None:
    """Import what takes SGLang longest and is not SGLang, for all processes that run tests."""
    for name in _SLOW_IMPORTS:
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            importlib.import_module(name)


def run_tests(dest: Path, tests: list[str]) -> None:
    """Run upstream-form tests in a process that imports the patched tree; raises SystemExit."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        os.chdir(dest)
        sys.path.insert(0, str(dest / "python"))
        os.environ["PYTHONPATH"] = str(dest / "python")
        # Neither this repository's settings nor its plugins: the tests are upstream's.
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-c", os.devnull, "--rootdir", str(dest), "-W", "ignore"]
        status = pytest.main([*options, *tests])
        sys.stdout.flush()
        os._exit(int(status))
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"tests failed: {' '.join(tests)}")


def check(dest: Path, first: str, last: str) -> None:
    start, series = time.monotonic(), tree.patches(last)
    preload()
    tree.build(dest, [])
    tests: list[str] = []
    for patch in series:
        title = " ".join(_TITLE.search(patch.read_text()).group(1).split())
        text = patch.with_suffix(".md")
        if not text.exists() or text.read_text().splitlines()[0] != f"# {title}":
            raise SystemExit(f"{text.name}, the text of {patch.name}, must begin with '# {title}'")
        print(f"{patch.stem}: {title}", flush=True)
        tree.apply(dest, patch)
        for each in touched(patch):
            if not compileall.compile_file(str(dest / each), quiet=1, force=True):
                raise SystemExit(f"{patch.name}: {each} does not compile")
        own = tests_of(patch)
        is_last = patch == tree.patches()[-1]  # its tests run with those of all
        if own and patch.name[:4] >= first and not is_last:
            run_tests(dest, own)
        tests += [each for each in own if each not in tests]
    if series == tree.patches():
        print(f"all {len(series)} patches", flush=True)
        run_tests(dest, tests)
    print(f"patches: {len(series)} applied in {time.monotonic() - start:.0f} s, all is green")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, nargs="?", metavar="DEST", help="a new folder")
    parser.add_argument("--first", default="0000", metavar="NNNN", help="first patch to test")
    parser.add_argument("--last", default="9999", metavar="NNNN", help="last patch to apply")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sglang-patched-") as temporary:
        dest = arguments.dest or Path(temporary) / "tree"
        check(dest, arguments.first, arguments.last)


if __name__ == "__main__":
    main()

"""SGLang's tree with the series applied, from the installed package.

    python patches/tree.py DEST [--upto NNNN] [--git]

DEST/python/sglang is a copy of the installed `sglang` with the patches up to NNNN (all, if
left out) on top: run it with PYTHONPATH=DEST/python. The compiled extensions are links to
the installed ones. With ``--git``, DEST is a repository whose first commit is the package
and whose others are the patches, ready for changes and `git format-patch`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

SERIES = Path(__file__).resolve().parent
BASE = "0.5.23"
"""The release that the series is against."""

_GIT = (
    "git",
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "user.name=sglang-hybrid developers"),
    *("-c", "user.email=sglang-hybrid@users.noreply.github.com"),
)


def patches(upto: str = "9999") -> list[Path]:
    """The series in order, up to the number ``upto``."""
    return [each for each in sorted(SERIES.glob("[0-9]*.patch")) if each.name[:4] <= upto[:4]]


def installed_package() -> Path:
    """Folder of the installed `sglang`; raises SystemExit if it is another release."""
    if version("sglang") != BASE:
        raise SystemExit(
            f"the series is against sglang {BASE}, but {version('sglang')} is installed; "
            f"install sglang=={BASE}"
        )
    spec = importlib.util.find_spec("sglang")
    return Path(spec.submodule_search_locations[0])


def copy_package(dest: Path) -> None:
    """The installed package at ``dest``/python/sglang, which must not exist."""
    package = dest / "python" / "sglang"

    def copy(source: str, target: str) -> None:
        if source.endswith(".so"):
            os.symlink(source, target)
        else:
            shutil.copy2(source, target)  # with its time: compiled files stay valid

    shutil.copytree(installed_package(), package, copy_function=copy)


def git(dest: Path, *arguments: str) -> str:
    """Run git on ``dest`` alone, whatever repository it lies in; raises SystemExit."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(dest.resolve().parent)}
    done = subprocess.run(
        (*_GIT, *arguments), cwd=dest, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def apply(dest: Path, patch: Path) -> None:
    """Check that ``patch`` applies without fuzz, and apply it."""
    git(dest, "apply", "--check", str(patch))
    git(dest, "apply", "--whitespace=error-all", str(patch))


def build(dest: Path, series: Iterable[Path], as_repository: bool = False) -> None:
    """The package with ``series`` on top at ``dest``, which must not exist or be empty."""
    if dest.exists() and any(dest.iterdir()):
        raise SystemExit(f"{dest} is not empty; name a new folder")
    dest.mkdir(parents=True, exist_ok=True)
    copy_package(dest)
    if not as_repository:
        for patch in series:
            apply(dest, patch)
        return
    git(dest, "init", "--quiet", "--initial-branch=main")
    (dest / ".git" / "info" / "exclude").write_text("*.so\n__pycache__/\n.pytest_cache/\n")
    git(dest, "add", "--all")
    git(dest, "commit", "--quiet", "--message", f"sglang {BASE}")
    git(dest, "tag", "base")
    for patch in series:
        git(dest, "am", "--quiet", "--keep-non-patch", str(patch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, metavar="DEST", help="a new folder")
    parser.add_argument("--upto", default="9999", metavar="NNNN", help="last patch to apply")
    parser.add_argument("--git", action="store_true", help="make it a repository")
    arguments = parser.parse_args()
    build(arguments.dest, patches(arguments.upto), arguments.git)
    print(f"PYTHONPATH={arguments.dest.resolve() / 'python'}", file=sys.stderr)


if __name__ == "__main__":
    main()

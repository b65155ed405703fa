"""Files of `sglang_hybrid/core` that the series carries into SGLang's tree.

    python patches/carried.py DEST          # write them into the tree at DEST

They are the same files but for where they import from, and the line length and order of
imports that SGLang's formatter asks for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).resolve().parent.parent / "sglang_hybrid" / "core"
FOLDER = Path("python/sglang/srt/mem_cache/state_eviction")
NAMES = (
    "attention_costs",
    "checkpoints",
    "config_fields",
    "costs",
    "decider",
    "feed_forward_costs",
    "linear_attention_families",
    "live_tree",
    "mamba_families",
    "migration",
    "model_families",
    "policies",
    "scores",
    "sharding",
    "state_costs",
    "victims",
)


ADMISSION_FOLDER = FOLDER.with_name("state_admission")
ADMISSION_NAMES = ("forks", "pages")

FILES = {
    **dict.fromkeys(NAMES, FOLDER),
    **dict.fromkeys(ADMISSION_NAMES, ADMISSION_FOLDER),
}
"""Folder in SGLang's tree by module of core."""


def _package(name: str) -> str:
    return ".".join(FILES[name].parts[1:])


def upstream_text(name: str) -> str:
    """The module ``name`` of core as it stands in SGLang's tree."""
    text = (CORE / f"{name}.py").read_text()
    for each in FILES:
        text = text.replace(f"sglang_hybrid.core.{each} ", f"{_package(each)}.{each} ")
    text = text.replace("sglang_hybrid.core", _package(name))
    options = ("--isolated", "--line-length=88", "--target-version=py311", "-")
    sorting = ("check", "--select=I", "--fix", "--quiet")
    ours = "lint.isort.known-first-party=['sglang']"
    for command in ((*sorting, "--config", ours), ("format",)):
        text = subprocess.run(
            (sys.executable, "-m", "ruff", *command, *options),
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def main() -> None:
    for name, folder in FILES.items():
        path = Path(sys.argv[1]) / folder / f"{name}.py"
        path.write_text(upstream_text(name))


if __name__ == "__main__":
    main()

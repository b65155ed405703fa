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
    "feed_forward_costs",
    "linear_attention_families",
    "live_tree",
    "mamba_families",
    "model_families",
    "policies",
    "scores",
    "sharding",
    "state_costs",
    "victims",
)


def upstream_text(name: str) -> str:
    """The module ``name`` of core as it stands in SGLang's tree."""
    text = (CORE / f"{name}.py").read_text()
    text = text.replace("sglang_hybrid.core", "sglang.srt.mem_cache.state_eviction")
    options = ("--isolated", "--line-length=88", "--target-version=py311", "-")
    for command in (("check", "--select=I", "--fix", "--quiet"), ("format",)):
        text = subprocess.run(
            (sys.executable, "-m", "ruff", *command, *options),
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def main() -> None:
    folder = Path(sys.argv[1]) / FOLDER
    for name in NAMES:
        (folder / f"{name}.py").write_text(upstream_text(name))


if __name__ == "__main__":
    main()

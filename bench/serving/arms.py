"""The caches that are compared, as flags and environment of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
"""Names SGLang's tree core: rust (its default) or python."""

PATCHED = "patched"
PATCHED_FLAGS = "--radix-eviction-policy utility --radix-eviction-policy-config '{\"alpha\": 0.5}'"


@dataclass(frozen=True)
class Arm:
    """One way to start a server; everything else is the same for all arms.

    Attributes:
        name: on the command line and in files.
        title: in reports.
        flags: of ``sglang.launch_server``.
        environment: variables of the server.
        stock: whether the cache is SGLang's own.
    """

    name: str
    title: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    stock: bool = False

    def settings(self) -> dict[str, Any]:
        """What makes two arms of one name the same."""
        return {"flags": list(self.flags), "environment": dict(self.environment)}


def _ours(policy: str) -> tuple[str, ...]:
    return ("--cache", "hybrid-marconi", "--cache-config", json.dumps({"policy": policy}))


KNOWN = (
    Arm("stock-rust", "stock, Rust core", (), {TREE_CORE: "rust"}, True),
    Arm("stock-python", "stock, Python core", (), {TREE_CORE: "python"}, True),
    Arm(
        "stock-cap",
        "stock, 3 states per path",
        ("--mamba-max-states-per-path", "3"),
        {TREE_CORE: "rust"},
        True,
    ),
    Arm("lru", "hybrid-marconi, lru", _ours("lru")),
    Arm("marconi", "hybrid-marconi, marconi tuned", _ours("marconi")),
    Arm("auto", "hybrid-marconi, auto", _ours("auto")),
)
NAMES = (*(arm.name for arm in KNOWN), PATCHED)
SHORT = ("stock-rust", "stock-cap", "auto")


def patched_arm(tree: Path, flags: Sequence[str]) -> Arm:
    """SGLang with `patches/` applied, as ``python patches/tree.py DEST`` builds it.

    Raises:
        ValueError: ``tree`` is no such tree.
    """
    sources = tree / "python"
    if not (sources / "sglang" / "srt").is_dir():
        raise ValueError(
            f"--patched-tree {tree}: no {sources / 'sglang' / 'srt'}; "
            f"build it with `python patches/tree.py {tree}`"
        )
    environment = {"PYTHONPATH": str(sources.resolve())}
    return Arm(PATCHED, "patched SGLang", tuple(flags), environment)


def choose(
    names: Sequence[str], patched_tree: Path | None, patched_flags: Sequence[str]
) -> tuple[list[Arm], dict[str, str]]:
    """The arms called ``names``, in the order of `NAMES`; and why others are left out.

    Raises:
        ValueError: a name that is not known, or a tree that is none.
    """
    for name in names:
        if name not in NAMES:
            raise ValueError(f"arm {name!r} is not known; allowed: {', '.join(NAMES)}")
    chosen = [arm for arm in KNOWN if arm.name in names]
    left_out = {}
    if PATCHED in names:
        if patched_tree is None:
            left_out[PATCHED] = "no --patched-tree was given"
        else:
            chosen.append(patched_arm(patched_tree, patched_flags))
    if not chosen:
        raise ValueError(f"no arm can run: {left_out}")
    return chosen, left_out

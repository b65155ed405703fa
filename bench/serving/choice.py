"""Workloads by name, with the sizes that ``--set`` changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bench.serving.workloads import (
    AgenticTrace,
    Agents,
    Ample,
    BranchingAgents,
    Chats,
    MooncakeTrace,
    Prefixes,
    ShortChats,
    Workload,
)

KNOWN: dict[str, type[Workload]] = {
    kind.name: kind
    for kind in (
        BranchingAgents,
        Prefixes,
        Agents,
        Chats,
        ShortChats,
        MooncakeTrace,
        AgenticTrace,
        Ample,
    )
}
SHORT = (Prefixes.name, BranchingAgents.name)


def choose(
    names: Sequence[str],
    size: str,
    sources: Mapping[str, Path],
    changes: Mapping[str, Mapping[str, str]],
) -> tuple[list[Workload], dict[str, str]]:
    """The workloads called ``names``, in the order of `KNOWN`; and why others are left out.

    Args:
        size: one of `SIZES`.
        sources: traces, by the name of the workload.
        changes: texts of ``--set``, by the name of the workload and of the field.

    Raises:
        ValueError: a name, a field or a value that is none.
    """
    for name in (*names, *changes):
        if name not in KNOWN:
            raise ValueError(f"workload {name!r} is not known; allowed: {', '.join(KNOWN)}")
    chosen, left_out = [], {}
    for name, kind in KNOWN.items():
        if name not in names:
            continue
        if kind.needs_trace and name not in sources:
            left_out[name] = f"no {kind.trace}: give the folder that holds it with --traces"
            continue
        chosen.append(_make(kind, size, sources.get(name), changes.get(name, {})))
    if not chosen:
        raise ValueError(f"no workload can run: {left_out}")
    return chosen, left_out


def _make(
    kind: type[Workload], size: str, source: Path | None, changes: Mapping[str, str]
) -> Workload:
    full = size == "full"
    workload = kind(**(kind.FULL if full else {}), source=source)
    if isinstance(workload, AgenticTrace) and full:
        workload = replace(workload, generated=dict(BranchingAgents.FULL))
    allowed = [field.name for field in fields(kind) if field.name not in ("source", "generated")]
    values = {}
    for name, text in changes.items():
        if name not in allowed:
            raise ValueError(
                f"--set {kind.name}.{name}: no such field; allowed: {', '.join(allowed)}"
            )
        values[name] = _parse(kind.name, name, text, getattr(workload, name))
    return replace(workload, **values)


def _parse(workload: str, name: str, text: str, like: Any) -> Any:
    """A value of the same type as ``like``: a number, or two of them."""
    try:
        if isinstance(like, tuple):
            low, high = (type(like[0])(part) for part in text.split("-"))
            if not 0 < low <= high:
                raise ValueError
            return low, high
        value = type(like)(text)
        if value <= 0 and name != "think":
            raise ValueError
        return value
    except ValueError:
        wanted = "two numbers, as 100-400" if isinstance(like, tuple) else "a number above 0"
        raise ValueError(f"--set {workload}.{name}={text}: not {wanted}") from None

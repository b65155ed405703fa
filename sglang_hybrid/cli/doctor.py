"""`hybrid-marconi doctor`: is this installation what the cache needs?"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import platform
import warnings
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_hybrid.adapter import names

_PIPED_WIDTH = 200
"""Columns of the tables where there is no terminal to fit: names are not cut."""

_DISTRIBUTIONS = ("sglang-hybrid", "sglang", "torch", "triton")
_PLUGIN_GROUP = "sglang.srt.plugins"
_PLUGIN = "hybrid_marconi"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`doctor` takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print what was found; returns 1 if something stands in the way of the cache."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    _quieten()
    problems = [*_installation(console), *_names(console), *_patches(console)]
    _features(console)
    for problem in problems:
        console.print(f"[red]problem:[/red] {escape(problem)}", soft_wrap=True, highlight=False)
    if not problems:
        console.print("[green]no problems found[/green]")
    return 1 if problems else 0


def _quieten() -> None:
    """SGLang comments on missing accelerators at import; the tables say it better."""
    warnings.filterwarnings("ignore")
    logging.basicConfig(level=logging.ERROR)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _installation(console: Console) -> list[str]:
    """Versions, device, and whether SGLang loads the plugin."""
    problem = names.version_problem()
    plugin, plugin_problem = _plugin()
    rows = [("python", platform.python_version())]
    rows += [(name, _version(name)) for name in _DISTRIBUTIONS]
    rows += [("device", _device()), ("platform", _platform()), ("plugin", plugin)]
    _print(console, "Installation", ("what", "found"), rows)
    if problem and names.unsupported_allowed():
        console.print(
            f"[yellow]warning:[/yellow] {escape(problem)}", soft_wrap=True, highlight=False
        )
        problem = None
    return [text for text in (problem, plugin_problem) if text]


def _device() -> str:
    try:
        import torch
    except ImportError as error:
        return f"unknown ({error})"
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def _platform() -> str:
    try:
        from sglang.srt.platforms import current_platform
    except Exception as error:  # importing a broken SGLang raises anything
        return f"unknown ({type(error).__name__}: {error})"
    return type(current_platform).__name__


def _plugin() -> tuple[str, str | None]:
    """State of the plugin, and what is wrong with it."""
    found = {entry.name for entry in importlib.metadata.entry_points(group=_PLUGIN_GROUP)}
    if _PLUGIN not in found:
        return "not discovered", "the plugin is not discovered; run `pip install sglang-hybrid`"
    chosen = os.environ.get("SGLANG_PLUGINS", "")
    if chosen and _PLUGIN not in {name.strip() for name in chosen.split(",")}:
        return (
            f"switched off by SGLANG_PLUGINS={chosen}",
            f"SGLANG_PLUGINS={chosen} switches the plugin off; add {_PLUGIN} or unset it",
        )
    try:
        from sglang.srt.plugins import load_plugins

        from sglang_hybrid.adapter import hooks

        load_plugins()
        missing = hooks.problems(hooks.LAUNCH)
    except Exception as error:  # as in `_platform`
        return "failed to load", f"SGLang cannot load plugins: {type(error).__name__}: {error}"
    return ("failed to load", missing[0]) if missing else ("discovered and active", None)


def _names(console: Console) -> list[str]:
    """The table of SGLang's names; returns the mismatches."""
    if names.installed_version() == "none":
        return []  # `_installation` has said so
    findings = names.check()
    rows = []
    previous = ""
    for finding in findings:
        owner, _, attribute = finding.name.path.replace(":", ".").rpartition(".")
        found = "[green]ok[/green]" if finding.ok else f"[red]{escape(finding.found)}[/red]"
        rows.append(("" if owner == previous else owner, attribute, finding.expected, found))
        previous = owner
    columns = ("module or class", "name", "expected", "found")
    _print(console, "Names of SGLang that the cache uses", columns, rows)
    return names.problems_of(findings)


def _features(console: Console) -> None:
    """How many features are served, and fields of SGLang that nobody has looked at."""
    if names.installed_version() == "none":
        return
    from sglang_hybrid.adapter import support

    counts = Counter(row.status for row in support.ROWS)
    found = ", ".join(f"{counts[status]} {status}" for status in support.Status)
    console.print(f"features of SGLang beside this cache: {found}; see docs/support.md")
    try:
        from sglang.srt.server_args import ServerArgs
    except Exception:  # `_names` has said so
        return
    if left := support.unreviewed(getattr(ServerArgs, "__struct_fields__", ())):
        console.print(
            "[yellow]warning:[/yellow] flags of this SGLang of which it is not known whether they "
            f"go together with the cache: {escape(', '.join(left))}",
            soft_wrap=True,
            highlight=False,
        )


def _patches(console: Console) -> list[str]:
    """The names that the CPU platform rebinds, where it is the platform."""
    if names.installed_version() == "none":
        return []
    try:
        from sglang_hybrid.cpu.patches import PATCHED_NAMES
    except Exception as error:  # torch or SGLang may be missing or broken
        return [f"the CPU platform cannot be imported: {type(error).__name__}: {error}"]
    _print(console, "Names that the CPU platform rebinds", ("name", "why"), PATCHED_NAMES)
    return []


def _print(
    console: Console, title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)

"""Figures for people."""

from __future__ import annotations


def show_bytes(value: float) -> str:
    """In the largest binary unit that leaves at least one whole."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB")) if value else "-"


def show_flops(value: float) -> str:
    """In the largest decimal unit that leaves at least one whole."""
    return _scaled(value, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def show_seconds(value: float) -> str:
    """In seconds, or milliseconds below one."""
    return f"{value * 1000:,.0f} ms" if value < 0.9995 else f"{value:,.2f} s"


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """Three or more significant digits in the largest unit that leaves at least one whole."""
    index = 0
    while value >= step and index + 1 < len(units):
        value /= step
        index += 1
    digits = 0 if (index == 0 and value == int(value)) or value >= 100 else 2
    return f"{value:,.{digits}f} {units[index]}"

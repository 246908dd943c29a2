"""Figures for readers: bytes in the unit that suits them, and short figures for the labels of plots."""

from __future__ import annotations

from dsbench.report.table import number


def size(bytes_: float) -> str:
    """`10.54 GiB`, `57.78 MiB`, `32.00 KiB`, `12 B`; with the sign of what is negative."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(bytes_) >= 2**power:
            return f"{bytes_ / 2**power:,.2f} {unit}"
    return f"{bytes_:,.0f} B"


def gain(bytes_: float) -> str:
    """A change of bytes, always with its sign; 0 stays 0."""
    return f"{'+' if bytes_ > 0 else ''}{size(bytes_)}" if bytes_ else "0"


def short(value: float, unit: str) -> str:
    """At most seven characters and the unit, for a label beside a mark."""
    if unit == "B":
        return size(value)
    if unit == "share":
        return f"{value:.1%}".replace("%", " %")
    unit = {"items": "", "tests": ""}.get(unit, unit)
    text = f"{value:,.0f}" if abs(value) >= 1e4 else number(value)
    return f"{text} {unit}".strip()

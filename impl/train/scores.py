"""Counts of right answers: each with its 95 % Wilson interval, and as a table (torch-free)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Z95 = 1.959963984540054


def wilson(right: int, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion."""
    centre = (right + Z95**2 / 2) / (n + Z95**2)
    half = Z95 / (n + Z95**2) * (right * (n - right) / n + Z95**2 / 4) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def score(right: int, n: int) -> dict[str, Any]:
    low, high = wilson(right, n)
    return {"right": right, "n": n, "share": right / n, "low": low, "high": high}


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a score; where there is a target, also that and whether it is met."""
    lines = []
    for name, r in rows.items():
        line = f"{name:<48} {r['right']:>5}/{r['n']:<5} {r['share']:7.1%}  [{r['low']:.1%}, {r['high']:.1%}]"
        if r.get("target"):
            line += f"  {r['target']}: {'met' if r['met'] else 'MISSED'}"
        lines.append(line)
    return "\n".join(lines)

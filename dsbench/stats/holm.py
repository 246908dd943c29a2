"""Holm's correction: many claims, one family-wise error."""

from __future__ import annotations

from collections.abc import Sequence


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values, in the given order: the family-wise error of `adjusted <= alpha` is at most alpha."""
    adjusted = [1.0] * len(ps)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = running
    return adjusted

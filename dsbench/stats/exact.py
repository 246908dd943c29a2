"""Exact metrics: values that a deterministic engine repeats to the last bit (measurement.md, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from dsbench.stats.unblocked import smallest_p

Outcome = Literal["equal", "differs", "candidate-varies", "baseline-varies"]
V = TypeVar("V")

FAR = 10
"""Times the larger spread of an arm's boots by which two arms lie apart that need no test to be told apart."""


def compare_exact(baseline: Sequence[V], candidate: Sequence[V], tolerance: float = 0.0) -> Outcome:
    """How two arms' boots compare: all boots of an arm must agree before the arms are compared.

    Numbers agree if they differ by at most `tolerance`, in their unit. Raises ValueError for an arm without a boot.
    """
    if not baseline or not candidate:
        raise ValueError("an exact comparison needs at least one boot an arm")
    if not _agree(baseline, tolerance):
        return "baseline-varies"
    if not _agree(candidate, tolerance):
        return "candidate-varies"
    return "equal" if all(value == baseline[0] for value in (*baseline, *candidate)) else "differs"


def _agree(values: Sequence[V], tolerance: float) -> bool:
    if all(value == values[0] for value in values):
        return True
    numbers = [value for value in values if isinstance(value, int | float)]
    return len(numbers) == len(values) and spread(numbers) <= tolerance


def spread(values: Sequence[float]) -> float:
    """Largest less smallest."""
    return max(values) - min(values)


def far_apart(baseline: Sequence[float], candidate: Sequence[float], alpha: float) -> bool:
    """Whether all boots of one arm lie beyond the other's by more than `FAR` times the larger spread of an arm.

    Never where like boots, dealt to two arms, part by luck more often than `alpha`: boots that read one of two levels
    have no spread in an arm that got one level only, and of 2 + 2 boots up to one deal in three is such, of 4 + 4 one
    in 35.
    """
    if smallest_p(len(baseline), len(candidate)) > alpha:
        return False
    gap = max(min(candidate) - max(baseline), min(baseline) - max(candidate))
    return gap > FAR * max(spread(baseline), spread(candidate))

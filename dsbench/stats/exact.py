"""Exact metrics: values that a deterministic engine repeats to the last bit (measurement.md, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

Outcome = Literal["equal", "differs", "candidate-varies", "baseline-varies"]
V = TypeVar("V")


def compare_exact(baseline: Sequence[V], candidate: Sequence[V]) -> Outcome:
    """How two arms' boots compare: all boots of an arm must agree before the arms are compared.

    Raises ValueError for an arm without a boot.
    """
    if not baseline or not candidate:
        raise ValueError("an exact comparison needs at least one boot an arm")
    if any(value != baseline[0] for value in baseline):
        return "baseline-varies"
    if any(value != candidate[0] for value in candidate):
        return "candidate-varies"
    return "equal" if baseline[0] == candidate[0] else "differs"

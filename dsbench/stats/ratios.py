"""Ratios of counters: boots are exchangeable under the null, and the counts of a boot stay together."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from dsbench.stats.assignments import assignments
from dsbench.stats.samples import level, two_sided

EXACT_UP_TO = 20_000
"""Assignments of boots to arms that are enumerated (8 + 8 are 12,870); beyond, they are drawn."""

Counts = tuple[float, float]
"""Numerator and denominator of one boot."""


def pooled(boots: Sequence[Counts]) -> float:
    """Ratio of the sums. ValueError if nothing was counted."""
    below = sum(count for _, count in boots)
    if below <= 0:
        raise ValueError("a ratio needs at least one count in its denominator")
    return sum(count for count, _ in boots) / below


def permutation_p(baseline: Sequence[Counts], candidate: Sequence[Counts]) -> float:
    """Two-sided p of the hypothesis that it does not matter which arm a boot is of; 1 with one boot in an arm."""
    if min(len(baseline), len(candidate)) < 2:
        return 1.0
    counts = np.asarray([*baseline, *candidate], dtype=np.float64)
    scale = abs(pooled([*baseline, *candidate])) or 1.0
    b = assignments(len(baseline), len(candidate), EXACT_UP_TO) @ counts
    a = counts.sum(axis=0) - b
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = level((b[:, 0] / b[:, 1] - a[:, 0] / a[:, 1]) / scale)
    observed = level((pooled(candidate) - pooled(baseline)) / scale)
    return two_sided(differences, observed, drawn=comb(len(counts), len(baseline)) > EXACT_UP_TO)


def smallest_p(n_baseline: int, n_candidate: int) -> float:
    """Smallest two-sided p the test could give: 0.33 at 2 + 2 boots, 0.029 at 4 + 4."""
    return min(1.0, 2.0 / comb(n_baseline + n_candidate, n_baseline))

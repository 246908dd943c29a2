"""Ratios of counters: boots are exchangeable under the null, and the counts of a boot stay together."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test

from dsbench.stats.samples import SEED, level

RESAMPLES = 20_000
"""Assignments of boots to arms; all of them up to this many, else as many drawn with a fixed seed."""

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

    def difference(x: NDArray[np.float64], y: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        a, b = counts[x.astype(int)].sum(axis=axis - 1), counts[y.astype(int)].sum(axis=axis - 1)
        return level((b[..., 0] / b[..., 1] - a[..., 0] / a[..., 1]) / scale)

    first = np.arange(len(baseline), dtype=np.float64)
    second = np.arange(len(baseline), len(counts), dtype=np.float64)
    result = permutation_test(
        (first, second),
        difference,
        permutation_type="independent",
        vectorized=True,
        n_resamples=RESAMPLES,
        axis=-1,
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def smallest_p(n_baseline: int, n_candidate: int) -> float:
    """Smallest two-sided p the test could give: 0.33 at 2 + 2 boots, 0.029 at 4 + 4."""
    return min(1.0, 2.0 / comb(n_baseline + n_candidate, n_baseline))

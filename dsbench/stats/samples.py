"""Paired sign-flip test over blocks, and the interval that inverts it.

Under the null the sign of each block's difference is a coin toss: the order in a block is random and
nothing else tells the arms apart. The test is exact; no distribution is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test

EXACT_UP_TO = 16
"""Blocks for which all 2^n sign patterns are enumerated; beyond, this many patterns are drawn with a fixed seed."""
SEED = 20250101


@dataclass(frozen=True)
class Interval:
    """A confidence interval; unbounded where n is too small for the confidence asked."""

    low: float
    high: float
    attained: float
    """Confidence it really has, at least what was asked; 1 if it is unbounded."""

    def inside(self, margin: float) -> bool:
        """Whether all of it lies strictly within plus or minus the margin."""
        return -margin < self.low and self.high < margin


def smallest_p(blocks: int) -> float:
    """Smallest two-sided p of the test: 0.0625 at 5 blocks, 0.03125 at 6."""
    return min(1.0, 2.0 ** (1 - blocks))


def blocks_to_fire(alpha: float) -> int:
    """Fewest blocks at which the test can reach p <= alpha."""
    blocks = 1
    while smallest_p(blocks) > alpha:
        blocks += 1
    return blocks


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the hypothesis that the differences are symmetric about 0 (their mean is the statistic)."""
    values = _finite(differences)
    if len(values) == 1 or not values.any():
        return 1.0
    scale = float(np.abs(values).max())
    result = permutation_test(
        (values,),
        lambda x, axis: level(np.mean(x, axis=axis) / scale),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2 ** min(len(values), EXACT_UP_TO),
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def level(statistic: Any) -> NDArray[np.float64]:
    """Statistics of order 1 without the rounding of their sums, so that equal ones are counted as equal."""
    rounded: NDArray[np.float64] = np.round(statistic, 9)
    return rounded


def interval(differences: Sequence[float], confidence: float) -> Interval:
    """All centres that the sign-flip test does not reject at level 1 - confidence.

    The test's p at a centre c counts the non-empty subsets of blocks whose mean is not above c, so the ends
    are order statistics of the subset means (Hartigan's typical values): exact, with no search.
    """
    return ends(subset_means(differences), confidence)


def ends(typical: NDArray[np.float64], confidence: float) -> Interval:
    """The interval between two order statistics of what a one-sided exact test counts."""
    values = np.sort(typical)
    patterns = len(values) + 1
    rank = int((1.0 - confidence) / 2.0 * patterns + 1e-9)
    if rank == 0:
        return Interval(-np.inf, np.inf, 1.0)
    return Interval(float(values[rank - 1]), float(values[-rank]), 1.0 - 2.0 * rank / patterns)


def subset_means(differences: Sequence[float]) -> NDArray[np.float64]:
    """Means of all non-empty subsets, or of a fixed random choice of them when there are many blocks."""
    values = _finite(differences)
    n = len(values)
    if n <= EXACT_UP_TO:
        chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    else:
        rng = np.random.default_rng(SEED)
        chosen = rng.integers(0, 2, size=(2**EXACT_UP_TO - 1, n))
        chosen = chosen[chosen.any(axis=1)]
    means: NDArray[np.float64] = chosen @ values / chosen.sum(axis=1)
    return means


def _finite(differences: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"a sign-flip test needs at least one finite difference, got {list(differences)}")
    return values

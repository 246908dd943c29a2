"""Paired sign-flip test over blocks, and the interval that inverts it.

Under the null the sign of each block's difference is a coin toss: the order in a block is random and
nothing else tells the arms apart. The test is exact; no distribution is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT_UP_TO = 16
"""Blocks for which all 2^n sign patterns are enumerated; beyond, patterns are drawn with a fixed seed."""
NUMBERS_DRAWN = 2**24
"""Most numbers of all drawn patterns together; at least 999 and at most 2^16 patterns are drawn."""
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
    if len(values) > EXACT_UP_TO and (values.min() >= 0 or values.max() <= 0):
        # Only patterns that leave every sign are as extreme. Drawn ones could not say how rare that is.
        return smallest_p(int(np.count_nonzero(values)))
    scaled = values / np.abs(values).max()
    means = level(_signs(len(values)) @ scaled / len(values))
    return two_sided(means, level(scaled.mean()), drawn=len(values) > EXACT_UP_TO)


def two_sided(statistics: NDArray[np.float64], observed: Any, drawn: bool) -> float:
    """p of an observed statistic among those of all rearrangements; the observed is one more if they are `drawn`.

    A rearrangement without a statistic (nan) counts as one at least as extreme.
    """
    below, above = int((~(statistics > observed)).sum()), int((~(statistics < observed)).sum())
    return min(1.0, 2.0 * (min(below, above) + drawn) / (len(statistics) + drawn))


@lru_cache(maxsize=8)
def _signs(n: int) -> NDArray[np.int8]:
    """[patterns, n] of 1 and -1: all of them, the first without a -1, or a fixed random choice."""
    if n > EXACT_UP_TO:
        return 1 - 2 * np.random.default_rng(SEED).integers(0, 2, size=(_draws(n), n), dtype=np.int8)
    return (1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)).astype(np.int8)


def _draws(n: int) -> int:
    return max(999, min(1 << EXACT_UP_TO, NUMBERS_DRAWN // n))


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


def subset_means(differences: Sequence[float], sizes: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Means of all non-empty subsets, or of a fixed random choice of them when there are many blocks.

    With `sizes` each difference is the mean of so many items, and so is a subset's mean: it never leaves the range of
    the differences. The test that it inverts flips the sums of the items, which is as exact.
    """
    values = _finite(differences)
    weights = np.ones(len(values), dtype=np.int64) if sizes is None else np.asarray(sizes, dtype=np.int64)
    if len(values) <= EXACT_UP_TO:
        chosen = _signs(len(values))[1:] < 0
        means: NDArray[np.float64] = chosen @ (values * weights) / (chosen @ weights)
        return means
    # Of the zeros it only matters how many of each size are chosen; among many items nearly all are.
    rng, moved = np.random.default_rng(SEED), values != 0
    some = rng.integers(0, 2, size=(_draws(int(moved.sum()) or 1), int(moved.sum())), dtype=np.int8)
    below = some @ weights[moved]
    for size, number in zip(*np.unique(weights[~moved], return_counts=True), strict=True):
        below = below + size * rng.binomial(number, 0.5, len(some))
    drawn: NDArray[np.float64] = (some @ (values * weights)[moved])[below > 0] / below[below > 0]
    return drawn


def _finite(differences: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"a sign-flip test needs at least one finite difference, got {list(differences)}")
    return values

"""Two arms without blocks: exact Mann-Whitney and permutation tests, and the interval that inverts the latter.

Boots are exchangeable under the null: nothing but the arm's name tells them apart. With ties the Mann-Whitney p
is approximate, so the permutation p decides (measurement.md, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, fsum, sqrt
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, ttest_ind

from dsbench.stats.assignments import assignments
from dsbench.stats.samples import Interval, ends, level, two_sided

EXACT_UP_TO = 200_000
"""Assignments of boots to arms that are enumerated (10 + 10 are 184,756); beyond, they are drawn."""
WHITNEY_EXACT_UP_TO = 100
"""Boots in an arm; beyond, the normal approximation of U is as good."""
LARGEST = 10**300
"""Beyond, a number of assignments is no float, and its p is 0 for every purpose."""
MANN_WHITNEY = "exact Mann-Whitney"
PERMUTATION = "permutation of boots"


@dataclass(frozen=True)
class TwoSamples:
    """What the tests say of two arms; differences are second minus first."""

    n_a: int
    n_b: int
    difference: float
    """Of the means."""
    u_a: float
    u_b: float
    """Pairs in which the one arm's value is the higher, ties counted half."""
    mann_whitney_p: float
    permutation_p: float
    """Both two-sided."""
    ties: bool
    test: str
    """The test that decides."""
    smallest_p: float
    interval: Interval
    """Of the difference of the means."""

    @property
    def p(self) -> float:
        """Of the test that decides."""
        return self.mann_whitney_p if self.test == MANN_WHITNEY else self.permutation_p

    def p_if_it_fires(self, alpha: float) -> float | None:
        """None where the test cannot reach `alpha` at this n: such a test is not reported as one."""
        return self.p if self.smallest_p <= alpha else None

    def parted(self, alpha: float) -> str:
        """Why a Mann-Whitney p of at most `alpha` says nothing of the means; '' where it does, or where none was met.

        U counts pairs of boots, and a few wild ones can take the means the other way. Pairs and means agree if the
        median of the pairs' differences (the Hodges-Lehmann shift) has the sign of the difference of the means, and
        the interval of the latter lies on that side of 0.
        """
        p = self.p_if_it_fires(alpha)
        if self.test != MANN_WHITNEY or p is None or p > alpha:
            return ""
        side = 1.0 if self.difference > 0 else -1.0
        pairs = f"ranks and means disagree (an outlier?): the candidate is higher in {self.u_b:g} of "
        pairs += f"{self.n_a * self.n_b} pairs, but "
        if side * (self.u_b - self.u_a) <= 0:
            return f"{pairs}its mean is {'higher' if self.difference > 0 else 'lower'}"
        if min(side * self.interval.low, side * self.interval.high) <= 0:
            return f"{pairs}the interval of the difference of the means holds 0"
        return ""


def compare_unblocked(a: Sequence[float], b: Sequence[float], confidence: float, declared: str = "") -> TwoSamples:
    """Compare two arms' boots. `declared` may name the permutation test; otherwise ties choose it.

    Raises ValueError for an arm without a finite value.
    """
    x, y = _finite(a), _finite(b)
    ties = len(np.unique([*x, *y])) < len(x) + len(y)
    whitney = mannwhitneyu(
        x, y, alternative="two-sided", method="exact" if max(len(x), len(y)) <= WHITNEY_EXACT_UP_TO else "asymptotic"
    )
    return TwoSamples(
        n_a=len(x),
        n_b=len(y),
        difference=fmean(b) - fmean(a),
        u_a=float(whitney.statistic),
        u_b=len(x) * len(y) - float(whitney.statistic),
        mann_whitney_p=float(whitney.pvalue),
        permutation_p=permutation_p(a, b),
        ties=ties,
        test=PERMUTATION if ties or "permutation" in declared.lower() else MANN_WHITNEY,
        smallest_p=smallest_p(len(x), len(y)),
        interval=ends(swap_differences(a, b), confidence),
    )


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of either test: 0.10 at 3 + 3 boots, 0.029 at 4 + 4."""
    assignments = comb(n_a + n_b, n_a)
    return min(1.0, 2.0 / assignments) if assignments < LARGEST else 0.0


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the difference of the means over all assignments of boots to arms."""
    x, y = _finite(a), _finite(b)
    if len(x) + len(y) == 2 or not np.ptp([*x, *y]):
        return 1.0
    if min(len(x), len(y)) == 1:
        return _rank_p(x[0], y) if len(x) == 1 else _rank_p(y[0], x)
    drawn = comb(len(x) + len(y), len(x)) > EXACT_UP_TO
    if drawn and (x.max() < y.min() or y.max() < x.min()):
        return smallest_p(len(x), len(y))  # no other assignment is as extreme; drawn ones could not say how rare it is
    # From 0, so that sums of large and nearly equal values keep their last digits.
    values = (np.concatenate([x, y]) - x[0]) / float(np.ptp([*x, *y]))
    second = assignments(len(x), len(y), EXACT_UP_TO) @ values
    differences = level(second / len(y) - (values.sum() - second) / len(x))
    observed = level(values[len(x) :].mean() - values[: len(x)].mean())
    return two_sided(differences, observed, drawn=drawn)


def _rank_p(alone: float, others: NDArray[np.float64]) -> float:
    """Of one boot against several: assignments differ in which boot is alone, so its rank is all there is."""
    below, above = 1 + int((others <= alone).sum()), 1 + int((others >= alone).sum())
    return min(1.0, 2.0 * min(below, above) / (len(others) + 1))


def swap_differences(a: Sequence[float], b: Sequence[float]) -> NDArray[np.float64]:
    """For every other assignment of boots to arms: the mean of the boots of b that it swaps, less that of a's.

    A shift c is rejected by the one-sided permutation test when few of these are on its side of c: they are to
    two arms what the subset means are to blocks (see samples.interval).
    """
    x, y = _finite(a), _finite(b)
    n, taken = len(x), assignments(len(x), len(y), EXACT_UP_TO)
    moved = taken[:, :n].sum(axis=1)
    kept = moved > 0
    values: NDArray[np.float64] = (~taken[kept, n:] @ y - taken[kept, :n] @ x) / moved[kept]
    return values


def pooled_sd(*arms: Sequence[float]) -> float | None:
    """Spread of boots within the arms; None if no arm has two."""
    spread = [(len(arm) - 1, variance(arm)) for arm in arms if len(arm) > 1]
    freedom = sum(degrees for degrees, _ in spread)
    return sqrt(fsum(degrees * value for degrees, value in spread) / freedom) if freedom else None


@dataclass(frozen=True)
class Welch:
    """Welch's t test, for comparison only: it takes the boots for normal."""

    p: float
    ci95: tuple[float, float]
    ci90: tuple[float, float]
    """Of the difference of the means, second minus first."""


def welch(a: Sequence[float], b: Sequence[float]) -> Welch | None:
    """None with fewer than two boots in an arm, or without any spread."""
    x, y = _finite(a), _finite(b)
    if min(len(x), len(y)) < 2 or not (np.ptp(x) or np.ptp(y)):
        return None
    result = ttest_ind(y, x, equal_var=False)
    wide, narrow = result.confidence_interval(0.95), result.confidence_interval(0.90)
    return Welch(float(result.pvalue), (float(wide.low), float(wide.high)), (float(narrow.low), float(narrow.high)))


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"an arm needs at least one boot, all with finite values, got {list(values)}")
    return found

"""Tests that take requests for replicates: what many tools do, beside the rules, so that the difference shows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm, ttest_ind

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def t_rejects(baseline: Floats, candidate: Floats, alpha: float) -> Bools:
    """[n] Welch's t test over all requests, [n, requests] in each arm."""
    found: Bools = ttest_ind(baseline, candidate, axis=1, equal_var=False).pvalue <= alpha
    return found


def u_rejects(baseline: Floats, candidate: Floats, alpha: float) -> Bools:
    """[n] Mann-Whitney over all requests, [n, requests] in each arm."""
    found: Bools = mannwhitneyu(baseline, candidate, axis=1, method="asymptotic").pvalue <= alpha
    return found


def shares_reject(a: tuple[float, float], b: tuple[float, float], alpha: float) -> bool:
    """Whether two pooled shares (hits, draws) differ, every draw taken as independent."""
    pooled = (a[0] + b[0]) / (a[1] + b[1])
    error = np.sqrt(pooled * (1 - pooled) * (1 / a[1] + 1 / b[1]))
    return bool(2 * norm.sf(abs(a[0] / a[1] - b[0] / b[1]) / error) <= alpha) if error > 0 else False

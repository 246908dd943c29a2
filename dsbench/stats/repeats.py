"""Whether boots of one arm repeat one another: as far apart as flips of single items explain, or farther."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dsbench.stats.items import mcnemar_p
from dsbench.stats.samples import sign_flip_p


def repeat_p(scores: Sequence[Sequence[float]] | NDArray[np.float64]) -> float:
    """Two-sided p that it does not matter which boot a score is of; 1 for one boot, or where all boots agree.

    `scores` are [items, boots], or [clusters, boots] sums of the items that stand or fall together. Two boots: exact
    McNemar, or sign flips where scores are no 0 and 1. More: Cochran's Q, against chi-square. What all items of a boot
    share (a cache, a clock, a batch) moves them one way; flips of single items do not.
    """
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] < 2:
        return 1.0
    moved = found[np.ptp(found, axis=1) > 0]
    if not len(moved):
        return 1.0
    if moved.shape[1] == 2:
        steps = moved[:, 1] - moved[:, 0]
        if np.ptp(np.abs(steps)):
            return sign_flip_p(steps.tolist())
        return mcnemar_p(int((steps > 0).sum()), int((steps < 0).sum()))
    centred = moved - moved.mean(axis=1, keepdims=True)
    totals = centred.sum(axis=0)
    degrees = moved.shape[1] - 1
    return float(chi2.sf(degrees * (totals @ totals) / np.square(centred).sum(), degrees))

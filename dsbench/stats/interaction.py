"""Whether a difference is the same in every group: Welch's analysis of variance, its p by exchanging blocks.

Without an interaction a block's difference does not depend on the host that it ran on, so blocks may change places
between hosts. Welch's statistic keeps its level where one host is noisier than another, too.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import f_oneway, permutation_test

from dsbench.stats.samples import SEED

EXACT_UP_TO = 20_000
"""Ways to share the blocks out that are enumerated; beyond, 9,999 are drawn with a fixed seed."""
DRAWN = 9_999
INFINITE = 1e18


def interaction_p(groups: Sequence[Sequence[float]]) -> float:
    """p of the hypothesis that all groups' values come from one distribution; 1 where nothing varies.

    ValueError for fewer than two groups, or a group of fewer than two values.
    """
    if len(groups) < 2 or min(map(len, groups)) < 2:
        raise ValueError(f"two groups of two values each are the least, got {[len(group) for group in groups]}")
    values = [np.asarray(group, dtype=np.float64) for group in groups]
    if len(set(np.concatenate(values).tolist())) == 1:
        return 1.0
    ways = _ways([len(group) for group in groups])
    drawn = np.inf if ways <= EXACT_UP_TO else DRAWN
    found = permutation_test(values, _welch, permutation_type="independent", alternative="greater", n_resamples=drawn,
                             rng=np.random.default_rng(SEED))  # fmt: skip
    return float(found.pvalue)


def smallest_interaction_p(sizes: Sequence[int]) -> float:
    """Smallest p of groups of these sizes: 1/3 for 2 + 2 values, 1/10 for 3 + 3, 1/35 for 4 + 4; 1 where one is alone.

    Groups of one size are alike to the statistic, so that whole groups may change places.
    """
    if len(sizes) < 2 or min(sizes) < 2:
        return 1.0
    ways = _ways(sizes)
    alike = math.prod(math.factorial(n) for n in Counter(sizes).values())
    return alike / ways if ways <= EXACT_UP_TO else max(alike / ways, 1 / (DRAWN + 1))


def _ways(sizes: Sequence[int]) -> int:
    return math.factorial(sum(sizes)) // math.prod(math.factorial(n) for n in sizes)


def _welch(*groups: Any, axis: int = -1) -> Any:
    """Welch's F to nine digits, so that equal statistics are counted as equal; without any spread it is very large."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        statistic = np.asarray(f_oneway(*groups, axis=axis, equal_var=False).statistic)
    return np.round(np.where(np.isfinite(statistic), statistic, INFINITE), 9)

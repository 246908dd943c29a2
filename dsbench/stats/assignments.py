"""Assignments of boots to two arms, as one matrix: what permutation tests count over."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from dsbench.stats.samples import SEED

DRAWN = 20_000
"""Assignments that are drawn where not all are enumerated."""
NUMBERS_DRAWN = 4_000_000
"""Most numbers of all drawn assignments together: fewer assignments where there are hundreds of boots."""


@lru_cache(maxsize=8)
def assignments(n_a: int, n_b: int, up_to: int) -> NDArray[np.bool_]:
    """[assignments, n_a + n_b] which boots are taken for the second arm's: all assignments if they are at most
    `up_to`, else as many as may be drawn, with a fixed seed."""
    n = n_a + n_b
    if comb(n, n_a) > up_to:
        drawn = max(999, min(DRAWN, NUMBERS_DRAWN // n))
        return np.random.default_rng(SEED).permuted(np.tile(np.arange(n) >= n_a, (drawn, 1)), axis=1)
    chosen = np.array(list(combinations(range(n), n_b)), dtype=np.intp)
    taken = np.zeros((len(chosen), n), dtype=np.bool_)
    np.put_along_axis(taken, chosen, True, axis=1)
    return taken

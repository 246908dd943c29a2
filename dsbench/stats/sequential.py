"""Looks at growing data with one error for all of them: O'Brien-Fleming-type alpha spending.

The spending function of Lan and DeMets (Biometrika 70, 1983) allows little of alpha early. The level of each look
is found by the recursive integration of Armitage, McPherson and Rowe (J. R. Stat. Soc. A 132, 1969; Jennison and
Turnbull, Group Sequential Methods, 2000, chapter 19): what a Brownian motion that has crossed no boundary so far
does until the next look. Tests of means over independent blocks follow it as their number grows; that the sign-flip
test keeps alpha at few blocks is shown by simulation in the tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from dsbench.stats.samples import smallest_p

NODES = 240
"""Gauss-Legendre nodes over the region in which a look goes on."""
FAR = 8.5
"""Standard deviations beyond which nothing is."""
SHARES = (0.5, 0.75, 1.0)
"""Looks, as shares of the most blocks."""


def spent(share: float, alpha: float, sides: int = 2) -> float:
    """Error that may be spent by the time a share of the blocks is in; alpha at 1."""
    tail = alpha / sides
    return float(2 * sides * norm.sf(norm.isf(tail / 2) / math.sqrt(share))) if share > 0 else 0.0


def alpha_at(look: int, looks: Sequence[int], alpha: float = 0.05, sides: int = 2) -> float:
    """Level of the test at a look, from 1, of looks given in blocks; two-sided, or of one side for `sides=1`."""
    if not 1 <= look <= len(looks) or any(b <= a for a, b in itertools.pairwise(looks)) or looks[0] < 1:
        raise ValueError(f"look {look} of looks at {list(looks)} blocks: looks must rise, and the look be one of them")
    return _levels(tuple(looks), alpha, sides)[look - 1]


def choose_looks(most: int, alpha: float = 0.05) -> list[int]:
    """Looks at about half, three quarters and all of the blocks; none at which the sign-flip test could not fire.

    Empty if it could not fire at `most` blocks either.
    """
    looks = sorted({math.ceil(most * share) for share in SHARES})
    while looks:
        dull = [n for i, n in enumerate(looks, start=1) if smallest_p(n) > alpha_at(i, looks, alpha)]
        if not dull:
            return looks
        looks.remove(dull[0])
    return []


@cache
def _levels(looks: tuple[int, ...], alpha: float, sides: int) -> tuple[float, ...]:
    """Nominal levels, look by look."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    levels: list[float] = []
    at, density, before, used = np.array([0.0]), np.array([1.0]), 0.0, 0.0
    for blocks in looks:
        share = blocks / looks[-1]
        scale = math.sqrt(share - before)
        due = spent(share, alpha, sides) - used

        def crossing(
            z: float, at: np.ndarray = at, density: np.ndarray = density, share: float = share, scale: float = scale
        ) -> float:
            """Probability that the first crossing is here, if the boundary is at z."""
            edge = z * math.sqrt(share)
            tails = norm.sf((edge - at) / scale)
            if sides == 2:
                tails = tails + norm.cdf((-edge - at) / scale)
            return float(density @ tails)

        z = float(brentq(lambda z, due=due, crossing=crossing: crossing(z) - due, 0.0, FAR))
        levels.append(float(sides * norm.sf(z)))
        high = z * math.sqrt(share)
        low = -high if sides == 2 else -FAR * math.sqrt(share)
        x = low + (nodes + 1) * (high - low) / 2
        # `density` carries the weights of the integration, so that sums are integrals.
        density = (norm.pdf((x[:, None] - at) / scale) / scale @ density) * weights * (high - low) / 2
        at, before, used = x, share, used + due
    return tuple(levels)

"""Looks at growing data with one error for all of them: O'Brien-Fleming-type alpha spending.

The spending function of Lan and DeMets (Biometrika 70, 1983) allows little of alpha early. The level of each look
is found by the recursive integration of Armitage, McPherson and Rowe (J. R. Stat. Soc. A 132, 1969; Jennison and
Turnbull, Group Sequential Methods, 2000, chapter 19): what a Brownian motion that has crossed no boundary so far
does until the next look. Tests of means over independent blocks follow it as their number grows. At few blocks the
looks of the sign-flip test are a little less alike than those of the motion, and its error would be up to 1.05
alpha; so the levels are those for `KEPT` alpha. The tests enumerate what the error is then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dsbench.stats.samples import smallest_p

NODES = 240
"""Gauss-Legendre nodes over the region in which a look goes on."""
KEPT = 0.9
"""Share of alpha that several looks may spend."""
FAR = 8.5
"""Standard deviations beyond which nothing is."""
SHARES = (0.5, 0.75, 1.0)
"""Looks, as shares of the most blocks."""


def spent(share: float, alpha: float, sides: int = 2) -> float:
    """Error that may be spent by the time a share of the blocks is in; alpha at 1."""
    tail = alpha / sides
    return float(2 * sides * ndtr(ndtri(tail / 2) / math.sqrt(share))) if share > 0 else 0.0


def alpha_at(look: int, looks: Sequence[int], alpha: float = 0.05, sides: int = 2) -> float:
    """Level of the test at a look, from 1, of looks given in blocks; two-sided, or of one side for `sides=1`."""
    if not 1 <= look <= len(looks) or any(b <= a for a, b in itertools.pairwise(looks)) or looks[0] < 1:
        raise ValueError(f"look {look} of looks at {list(looks)} blocks: looks must rise, and the look be one of them")
    return brownian_levels(tuple(looks), alpha * KEPT if len(looks) > 1 else alpha, sides)[look - 1]


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
def brownian_levels(looks: tuple[int, ...], alpha: float, sides: int = 2) -> tuple[float, ...]:
    """Levels, look by look, at which a Brownian motion errs in alpha of all cases."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    levels: list[float] = []
    at, density, before, used = np.array([0.0]), np.array([1.0]), 0.0, 0.0
    for blocks in looks:
        share = blocks / looks[-1]
        scale = math.sqrt(share - before)
        due = spent(share, alpha, sides) - used

        crossing = _Crossing(at, density, math.sqrt(share), scale, sides)
        # A look so early that hardly anything may be spent has its boundary at the edge of what can be computed.
        z = FAR
        if due > crossing.probability(FAR):
            z = float(brentq(lambda z, crossing=crossing, due=due: crossing.probability(z) - due, 0.0, FAR))
        levels.append(float(sides * ndtr(-z)))
        high = z * math.sqrt(share)
        low = -high if sides == 2 else -FAR * math.sqrt(share)
        x = low + (nodes + 1) * (high - low) / 2
        steps = (x[:, None] - at) / scale
        # `density` carries the weights of the integration, so that sums are integrals.
        density = (np.exp(-steps * steps / 2) / (scale * math.sqrt(2 * math.pi)) @ density) * weights * (high - low) / 2
        at, before, used = x, share, used + due
    return tuple(levels)


@dataclass(frozen=True)
class _Crossing:
    """From where the motion is before a look to how likely it first crosses a boundary there."""

    at: NDArray[np.float64]
    density: NDArray[np.float64]
    root: float
    """Standard deviation of the motion at the look."""
    scale: float
    """Standard deviation of its step since the look before."""
    sides: int

    def probability(self, z: float) -> float:
        edge = z * self.root
        tails = ndtr((self.at - edge) / self.scale)
        if self.sides == 2:
            tails = tails + ndtr((-edge - self.at) / self.scale)
        return float(self.density @ tails)

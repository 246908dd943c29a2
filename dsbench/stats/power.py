"""What a number of blocks can see, from the spread of the blocks' differences.

Up to 12 blocks the power of the sign-flip test itself is simulated with normal differences and a fixed seed;
beyond, it is that of the paired t test, which the sign-flip test has come close to by then.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.stats import t as student

from dsbench.stats.samples import SEED, blocks_to_fire

POWER = 0.80
SIMULATED_UP_TO = 12
SIMULATIONS = 1000


@cache
def visible(blocks: int, alpha: float) -> float | None:
    """Smallest mean difference seen with 80 % power, in standard deviations of the differences.

    None if the test cannot reach p <= alpha with so few blocks.
    """
    if blocks < blocks_to_fire(alpha):
        return None
    if blocks > SIMULATED_UP_TO:
        critical, spare = student.isf(alpha / 2, blocks - 1), student.isf(1 - POWER, blocks - 1)
        return float((critical + spare) / math.sqrt(blocks))
    noise = np.random.default_rng(SEED).standard_normal((SIMULATIONS, blocks))
    chosen = (np.arange(1, 2**blocks)[:, None] >> np.arange(blocks)) & 1
    means = noise @ (chosen / chosen.sum(axis=1, keepdims=True)).T
    rank = int(alpha / 2 * 2**blocks + 1e-9)
    # A shift is seen once it lifts the rank-th smallest subset mean above 0 (see samples.interval).
    needed = -np.partition(means, rank - 1, axis=1)[:, rank - 1]
    return float(np.quantile(needed, POWER))


def smallest_effect(sd: float, blocks: int, alpha: float) -> float | None:
    """Smallest mean difference seen with 80 % power, in the unit of `sd`; None if no effect could be."""
    in_sd = visible(blocks, alpha)
    return None if in_sd is None else in_sd * sd


def blocks_needed(effect: float, sd: float, alpha: float, at_most: int = 1_000_000) -> int | None:
    """Fewest blocks that see `effect` with 80 % power; None if more than `at_most`, or if there is no effect to see."""

    def sees(blocks: int) -> bool:
        seen = smallest_effect(sd, blocks, alpha)
        return seen is not None and seen <= effect

    if effect <= 0 or not sees(at_most):
        return None
    low = high = blocks_to_fire(alpha)
    while not sees(high):
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sees(middle) else (middle + 1, high)
    return high

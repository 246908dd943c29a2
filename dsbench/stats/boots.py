"""Boots an arm by normal approximation: what two arms without blocks can see, and what they need (measurement.md, 2).

The tests themselves are exact and reach their level later: `unblocked.boots_to_fire` is the least in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, sqrt
from statistics import variance

from scipy.stats import norm

POWER = 0.80


def boots_needed(effect: float, sd: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Boots an arm that see `effect` with this power: 2 ((z_alpha + z_power) sd / effect)^2; None without an effect."""
    if effect == 0:
        return None
    return max(1, ceil(2.0 * (_z(alpha, power) * sd / abs(effect)) ** 2 - 1e-9))


def visible(sd: float, n_a: int, n_b: int, alpha: float = 0.05, power: float = POWER) -> float:
    """Smallest difference of the means that n_a + n_b boots see with this power, in the unit of `sd`."""
    return _z(alpha, power) * sd * sqrt(1.0 / n_a + 1.0 / n_b)


def pooled_sd(*arms: Sequence[float]) -> float | None:
    """Spread of boots within the arms; None if no arm has two."""
    spread = [(len(arm) - 1, variance(arm)) for arm in arms if len(arm) > 1]
    freedom = sum(degrees for degrees, _ in spread)
    return sqrt(fsum(degrees * value for degrees, value in spread) / freedom) if freedom else None


def _z(alpha: float, power: float) -> float:
    return float(norm.isf(alpha / 2) + norm.isf(1 - power))

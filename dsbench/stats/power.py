"""What a number of boots, blocks or items can see, from the spread, for every kind of metric.

A change is seen if its test rejects and its estimate is beyond the margin, as a verdict asks; that there is none is
shown if the interval lies inside the margin. For few boots the
power of the exact test itself is simulated with normal differences and a fixed seed; beyond, it is that of the t
test, which the exact test has come close to by then. `dsbench simulate` holds these figures against the verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, chi2, ncx2, norm
from scipy.stats import t as student

from dsbench.stats.assignments import assignments
from dsbench.stats.samples import SEED, blocks_to_fire

POWER = 0.80
REPEAT_LEVEL = 0.05
"""Chance that items of several boots are judged by boots though the boots repeat (see boots_row)."""
SIMULATED_UP_TO = 10
"""Blocks up to which the exact test's power is simulated."""
UNBLOCKED_UP_TO = 24
"""The same for boots of both arms together. Beyond, Mann-Whitney has up to two points less power than this says."""
SWAPS_UP_TO = 12
"""The same for the interval of boots without blocks, 924 swaps of boots."""
SIMULATIONS = 6000
PIECE = 400
"""Simulations that are looked at together."""

Floats = NDArray[np.float64]


# --- blocks: sign-flip test, also over clusters ----------------------------------------------------------------------


def visible(blocks: int, alpha: float, margin: float = 0.0, power: float = POWER) -> float | None:
    """Smallest mean difference seen with this power, in standard deviations of the differences, as is `margin`.

    None if the test cannot reach p <= alpha with so few blocks.
    """
    if blocks < blocks_to_fire(alpha):
        return None
    if not margin:
        return _visible_without_margin(blocks, alpha, power)
    if blocks > SIMULATED_UP_TO:
        return _visible_by_t(1 / math.sqrt(blocks), blocks - 1, alpha, margin, power)
    to_reject, means = _shifts_needed(blocks, alpha)
    return float(np.quantile(np.maximum(to_reject, margin - means), power))


@cache
def _visible_without_margin(blocks: int, alpha: float, power: float) -> float:
    if blocks > SIMULATED_UP_TO:
        return _visible_by_t(1 / math.sqrt(blocks), blocks - 1, alpha, 0.0, power)
    return float(np.quantile(_shifts_needed(blocks, alpha)[0], power))


@cache
def _shifts_needed(blocks: int, alpha: float) -> tuple[Floats, Floats]:
    """For each simulated set of differences the shift at which the test rejects, and its mean; both [SIMULATIONS]."""
    noise = np.random.default_rng(SEED).standard_normal((SIMULATIONS, blocks))
    # A shift is seen once it lifts the rank-th smallest subset mean above 0 (see samples.interval).
    low, _ = _ends(noise, _subsets(blocks), int(alpha / 2 * 2**blocks + 1e-9))
    return -low, noise.mean(axis=1)


def _subsets(blocks: int) -> Floats:
    """[blocks, 2^blocks - 1] weights of the means of all subsets of the blocks."""
    chosen = (np.arange(1, 2**blocks)[:, None] >> np.arange(blocks)) & 1
    weights: Floats = (chosen / chosen.sum(axis=1, keepdims=True)).T
    return weights


def _ends(noise: Floats, weights: Floats, rank: int) -> tuple[Floats, Floats]:
    """The rank-th smallest and rank-th largest of `noise @ weights`, by row; not all at once, which takes 100 MB."""
    ends = []
    for at in range(0, len(noise), PIECE):
        sums = noise[at : at + PIECE] @ weights
        sums.partition((rank - 1, sums.shape[1] - rank), axis=1)
        ends.append((sums[:, rank - 1].copy(), sums[:, -rank].copy()))
    low, high = zip(*ends, strict=True)
    return np.concatenate(low), np.concatenate(high)


def smallest_effect(sd: float, blocks: int, alpha: float, margin: float = 0.0, power: float = POWER) -> float | None:
    """Smallest mean difference seen with this power, in the unit of `sd` and `margin`; None if no effect could be."""
    if sd <= 0:
        return margin if blocks >= blocks_to_fire(alpha) else None
    in_sd = visible(blocks, alpha, margin / sd, power)
    return None if in_sd is None else in_sd * sd


def blocks_needed(effect: float, sd: float, alpha: float, at_most: int = 1_000_000, margin: float = 0.0) -> int | None:
    """Fewest blocks whose verdict sees `effect` with 80 % power; None if more than `at_most`, or if it is no effect
    beyond the margin."""
    return _fewest(lambda n: smallest_effect(sd, n, alpha, margin), effect, blocks_to_fire(alpha), at_most)


# --- boots without blocks: Mann-Whitney, and a permutation of counter ratios -----------------------------------------


def boots_to_fire(alpha: float) -> int:
    """Fewest boots an arm at which a permutation of the boots can reach p <= alpha: 4 at 5 %."""
    boots = 2
    while 2 / math.comb(2 * boots, boots) > alpha:
        boots += 1
    return boots


def smallest_effect_unblocked(
    sd: float, n_baseline: int, n_candidate: int, alpha: float, margin: float = 0.0
) -> float | None:
    """Smallest difference of the arms' means seen with 80 % power, in the unit of `sd`, the spread between boots.

    By Mann-Whitney; a permutation of the boots, which ratios use, sees a little more. None if the test cannot reach
    p <= alpha with so few boots.
    """
    a, b = min(n_baseline, 30), min(n_candidate, 30)  # beyond, the test can fire, and the number of assignments is huge
    least = min(1.0, 2 / math.comb(a + b, a))
    if min(n_baseline, n_candidate) < 2 or least > alpha:
        return None
    if sd <= 0:
        return margin
    if n_baseline + n_candidate > UNBLOCKED_UP_TO:
        spread = math.sqrt(1 / n_baseline + 1 / n_candidate)
        return sd * _visible_by_t(spread, n_baseline + n_candidate - 2, alpha, margin / sd)
    to_reject, differences = _shifts_needed_unblocked(n_baseline, n_candidate, alpha)
    return sd * float(np.quantile(np.maximum(to_reject, margin / sd - differences), POWER))


@cache
def _shifts_needed_unblocked(n_baseline: int, n_candidate: int, alpha: float) -> tuple[Floats, Floats]:
    """As `_shifts_needed`, for Mann-Whitney over boots, and the differences of the means.

    A shift of the candidate lifts U by one where it passes the difference of a pair, so the pairs in order say at
    which shift U gets to its critical value.
    """
    rng = np.random.default_rng(SEED)
    a, b = rng.standard_normal((SIMULATIONS, n_baseline)), rng.standard_normal((SIMULATIONS, n_candidate))
    pairs = np.sort((a[:, :, None] - b[:, None, :]).reshape(SIMULATIONS, -1), axis=1)
    tail = np.cumsum(u_counts(n_baseline, n_candidate)) / math.comb(n_baseline + n_candidate, n_candidate)
    lowest_u = int((tail <= alpha / 2 + 1e-12).sum()) - 1
    critical = n_baseline * n_candidate - lowest_u
    return pairs[:, critical - 1], b.mean(axis=1) - a.mean(axis=1)


def u_counts(n_baseline: int, n_candidate: int) -> list[int]:
    """How many orders of the boots give U = 0, 1, ... (the Gaussian binomial coefficients)."""
    ways = [[[1]] * (n_candidate + 1)]
    for m in range(1, n_baseline + 1):
        row = [[1]]
        for n in range(1, n_candidate + 1):
            # The highest boot is the candidate's, above all m of the baseline, or the baseline's.
            counts = [0] * (m * n + 1)
            for u, count in enumerate(row[n - 1]):
                counts[u + m] += count
            for u, count in enumerate(ways[m - 1][n]):
                counts[u] += count
            row.append(counts)
        ways.append(row)
    return ways[n_baseline][n_candidate]


def boots_needed_unblocked(
    effect: float, sd: float, alpha: float, at_most: int = 1_000_000, margin: float = 0.0
) -> int | None:
    """Fewest boots an arm that see `effect` with 80 % power without blocks; None as in `blocks_needed`."""
    return _fewest(lambda n: smallest_effect_unblocked(sd, n, n, alpha, margin), effect, boots_to_fire(alpha), at_most)


def boots_normal(effect: float, sd: float, alpha: float) -> int | None:
    """Boots an arm by the normal approximation, 2 ((z + z) sd / effect)^2: what readers compute by hand.

    Below about 10 boots it is too hopeful, and blind to whether the test can fire. None without an effect.
    """
    if effect <= 0:
        return None
    z = float(norm.isf(alpha / 2) + norm.isf(1 - POWER))
    return max(2, math.ceil(2 * (z * sd / effect) ** 2))


def ratio_sd(share: float, counts: float, between: float = 0.0) -> float:
    """Standard deviation of one boot's ratio: of `counts` draws at `share`, and between boots beyond that."""
    return math.sqrt(share * (1 - share) / counts + between**2)


# --- items -----------------------------------------------------------------------------------------------------------


def smallest_share(items: int, flips: float, alpha: float, boots: int = 1, margin: float = 0.0) -> float | None:
    """Smallest difference of the share that is right, seen with 80 % power over paired items.

    One boot an arm is exact McNemar, and `flips` the share of items that differ between the arms: a larger difference
    makes as many differ as it is large, all of them one way. None if even losing every item would not be seen. With
    more boots the items' mean scores are compared, and `flips` is the share that differs between two boots of one arm:
    the difference itself comes on top, and so does the chance that boots are taken for no repeats of one another.
    """
    if not 0 < flips <= 1:
        raise ValueError(f"flips must be a share above 0 and at most 1, got {flips}")
    if boots > 1:
        seen = 0.0
        for _ in range(20):
            error = math.sqrt((flips + seen) / boots / items)
            seen = _visible_by_t(error, items - 1, alpha, margin, POWER / (1 - REPEAT_LEVEL)) if items > 1 else 2.0
        return seen if seen <= 1 else None

    def beyond(difference: float) -> float:
        return mcnemar_power(items, max(flips, difference), difference, alpha, margin) - POWER

    return None if beyond(1.0) < 0 else float(brentq(beyond, 0.0, 1.0, xtol=1e-7))


def mcnemar_power(items: int, flips: float, difference: float, alpha: float, margin: float = 0.0) -> float:
    """Chance that exact McNemar rejects, in the right direction and beyond the margin, when `flips` of the items
    are discordant and gained minus lost is `difference` of all items."""
    low, high = (int(binom.ppf(q, items, flips)) for q in (1e-9, 1 - 1e-9))
    total = np.arange(low, high + 1)
    # Fewest of m discordant items on one side that reject: the upper tail at 1/2 is at most alpha / 2.
    most_lost = binom.ppf(alpha / 2, total, 0.5) - 1
    most_lost = np.where(binom.cdf(most_lost + 1, total, 0.5) <= alpha / 2, most_lost + 1, most_lost)
    beyond = np.ceil((total - items * margin) / 2) - 1 if margin else total
    share_lost = (1 - difference / flips) / 2
    return float(binom.pmf(total, items, flips) @ binom.cdf(np.minimum(most_lost, beyond), total, share_lost))


# --- equivalence: what calls arms equivalent that are equal -----------------------------------------------------------


def blocks_equivalent(margin: float, sd: float, confidence: float, at_most: int = 1_000_000) -> int | None:
    """Fewest blocks at which the interval of arms without a difference lies inside the margin with 80 % power.

    `margin` and `sd`, of the differences, have one unit. None if it takes more than `at_most`, or without a margin.
    """

    def shown(blocks: int) -> float | None:
        reach = _reach(blocks, confidence)
        return None if reach is None else reach * sd

    return _fewest(shown, margin, 1, at_most)


def boots_equivalent_unblocked(margin: float, sd: float, confidence: float, at_most: int = 1_000_000) -> int | None:
    """The same in boots an arm without blocks, where `sd` is the spread between boots."""

    def shown(boots: int) -> float | None:
        reach = _reach_unblocked(boots, confidence)
        return None if reach is None else reach * sd

    return _fewest(shown, margin, 1, at_most)


@cache
def items_equivalent(margin: float, flips: float, confidence: float, at_most: int = 1_000_000) -> int | None:
    """The same in independent items that are right or wrong, of which the share `flips` differs between the arms."""
    if not 0 < flips <= 1:
        raise ValueError(f"flips must be a share above 0 and at most 1, got {flips}")

    def shown(items: int) -> float | None:
        return margin if tango_power(items, flips, margin, confidence) >= POWER else None

    return _fewest(shown, margin, 1, at_most)


@cache
def _reach(blocks: int, confidence: float) -> float | None:
    """How far the interval of blocks without a difference reaches from 0 in all but 20 % of cases, in standard
    deviations of the differences; None where it is unbounded."""
    if blocks > SIMULATED_UP_TO:
        return _reach_by_t(1 / math.sqrt(blocks), blocks - 1, confidence)
    noise = np.random.default_rng(SEED).standard_normal((SIMULATIONS, blocks))
    return _farther_end(noise, _subsets(blocks), confidence)


@cache
def _reach_unblocked(boots: int, confidence: float) -> float | None:
    """As `_reach`, for boots of two arms without blocks (see unblocked.swap_differences)."""
    if 2 * boots > SWAPS_UP_TO:
        return _reach_by_t(math.sqrt(2 / boots), 2 * boots - 2, confidence)
    rng, taken = np.random.default_rng(SEED), assignments(boots, boots, math.comb(2 * boots, boots))
    a, b = rng.standard_normal((SIMULATIONS, boots)), rng.standard_normal((SIMULATIONS, boots))
    moved = taken[:, :boots].sum(axis=1)
    some = moved > 0
    swaps = np.hstack([-1.0 * taken[some, :boots], 1.0 * ~taken[some, boots:]]) / moved[some, None]
    return _farther_end(np.hstack([a, b]), swaps.T, confidence)


def _farther_end(noise: Floats, weights: Floats, confidence: float) -> float | None:
    """Of intervals between two ends of `noise @ weights`, by row, what 80 % of them stay within on both sides of 0."""
    rank = int((1 - confidence) / 2 * (weights.shape[1] + 1) + 1e-9)
    if rank == 0:
        return None
    low, high = _ends(noise, weights, rank)
    return float(np.quantile(np.maximum(-low, high), POWER))


def _reach_by_t(standard_error: float, degrees: int, confidence: float) -> float:
    """By the t interval, over the spreads that may be estimated."""
    spreads = np.sqrt(chi2.ppf((np.arange(400) + 0.5) / 400, degrees) / degrees)
    half = float(student.isf((1 - confidence) / 2, degrees)) * spreads

    def inside(reach: float) -> float:
        return float(np.mean(np.maximum(2 * norm.cdf(reach - half) - 1, 0.0))) - POWER

    return standard_error * float(brentq(inside, 0.0, half[-1] + 10))


def tango_power(items: int, flips: float, margin: float, confidence: float) -> float:
    """Chance that the score interval of `items` of which `flips` differ, either way alike, lies inside the margin."""
    low, high = (int(binom.ppf(q, items, flips)) for q in (1e-9, 1 - 1e-9))
    total = np.arange(low, high + 1, dtype=np.float64)
    z = float(norm.isf((1 - confidence) / 2))

    def inside(excess: Floats) -> NDArray[np.bool_]:
        """Whether a gain of so many more than are lost is shown to be below the margin (see items.tango_interval)."""
        lost = (total - excess) / 2
        b = -total + (2 * items - excess) * margin
        root = np.sqrt(np.maximum(b * b + 8 * items * lost * margin * (1 - margin), 0.0))
        variance = items * ((root - b) / (2 * items) + margin * (1 - margin))
        below: NDArray[np.bool_] = (items * margin - excess) > z * np.sqrt(np.maximum(variance, 0.0))
        return below

    most, least = total.copy(), np.full_like(total, -1.0)
    for _ in range(40):
        middle = (most + least) / 2
        within = inside(middle)
        least, most = np.where(within, middle, least), np.where(within, most, middle)
    gained = binom.cdf(np.floor((total + most) / 2 + 1e-9), total, 0.5)
    below = binom.cdf(np.ceil((total - most) / 2 - 1e-9) - 1, total, 0.5)
    return float(binom.pmf(total, items, flips) @ np.where(most < 0, 0.0, gained - below))


# --- output law ------------------------------------------------------------------------------------------------------


def smallest_law(degrees: int, n: int, alpha: float) -> float:
    """Total variation that a chi-square of `n` tokens sees with 80 % power however it is spread over the cells.

    A departure of total variation v has a noncentrality of at least n (2 v)^2, reached where every cell is off by
    the same fraction; where few cells are off, less is seen.
    """
    critical = chi2.isf(alpha, degrees)
    noncentrality = brentq(lambda nc: ncx2.sf(critical, degrees, nc) - POWER, 1e-6, 1000.0 + 10 * degrees)
    return float(math.sqrt(noncentrality / n) / 2)


# --- shared ----------------------------------------------------------------------------------------------------------


def _visible_by_t(standard_error: float, degrees: int, alpha: float, margin: float, power: float = POWER) -> float:
    """By the t test, with the margin: both must be passed, so the harder one decides."""
    spare = float(student.isf(1 - power, degrees))
    return max(float(student.isf(alpha / 2, degrees)) * standard_error, margin) + spare * standard_error


def _fewest(smallest: Callable[[int], float | None], effect: float, least: int, at_most: int) -> int | None:
    """Fewest n, from `least`, whose smallest visible effect is at most `effect`."""

    def sees(n: int) -> bool:
        seen = smallest(n)
        return seen is not None and seen <= effect

    if effect <= 0 or not sees(at_most):
        return None
    low = high = least
    while not sees(high):
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sees(middle) else (middle + 1, high)
    return high

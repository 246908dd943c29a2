"""Two arms without blocks: tests against known values, the interval against its test, and TOST against the interval."""

from itertools import combinations
from math import comb
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.stats.samples import subset_means
from dsbench.stats.tost import tost_p
from dsbench.stats.unblocked import (
    MANN_WHITNEY,
    PERMUTATION,
    compare_unblocked,
    permutation_p,
    pooled_sd,
    smallest_p,
    swap_differences,
    welch,
)

BOOTS = st.lists(st.integers(0, 30).map(float), min_size=2, max_size=5)


@pytest.mark.parametrize(("n", "p"), [(3, 0.10), (4, 0.0286), (5, 0.0079), (6, 0.0022)])
def test_smallest_p_is_reached_by_separated_arms(n, p):
    tests = compare_unblocked(range(n), range(100, 100 + n), 0.90)
    assert tests.smallest_p == pytest.approx(p, abs=5e-4)
    assert tests.mann_whitney_p == pytest.approx(tests.smallest_p)
    assert tests.permutation_p == pytest.approx(tests.smallest_p)
    assert (tests.p_if_it_fires(0.05) is None) == (n == 3)


def test_ties_choose_the_permutation_and_so_does_the_declaration():
    assert compare_unblocked([1, 2, 3], [4, 5, 6], 0.9).test == MANN_WHITNEY
    assert compare_unblocked([1, 2, 3], [3, 5, 6], 0.9).test == PERMUTATION
    assert compare_unblocked([1, 2, 3], [4, 5, 6], 0.9, "exact permutation").test == PERMUTATION


@settings(max_examples=40, deadline=None)
@given(BOOTS, BOOTS)
def test_the_permutation_counts_every_assignment(a, b):
    """Against plain enumeration in whole numbers, where ties are ties."""
    pooled, n = a + b, len(a)
    seen = len(a) * sum(b) - len(b) * sum(a)
    counted = [0, 0, 0]
    for chosen in combinations(range(len(pooled)), n):
        first = sum(pooled[i] for i in chosen)
        value = len(a) * (sum(pooled) - first) - len(b) * first
        counted[0] += value <= seen
        counted[1] += value >= seen
        counted[2] += 1
    assert permutation_p(a, b) == pytest.approx(min(1.0, 2 * min(counted[:2]) / counted[2]))


def test_readings_with_a_decimal_have_their_ties_counted():
    a, b = [83.1, 82.7, 83.4, 82.9, 83.0, 83.3], [83.0, 83.2, 82.8, 83.3, 82.9, 83.1]
    assert permutation_p(a, b) == 1.0


@settings(max_examples=40, deadline=None)
@given(BOOTS, BOOTS)
def test_one_boot_against_several_goes_by_rank(a, b):
    alone = a[:1]
    others = np.array(b)
    expected = 2 * min((others <= a[0]).sum() + 1, (others >= a[0]).sum() + 1) / (len(b) + 1)
    assert permutation_p(alone, b) == pytest.approx(1.0 if np.ptp([*alone, *b]) == 0 else min(1.0, expected))
    assert permutation_p(alone, b) >= smallest_p(1, len(b)) - 1e-12


@settings(max_examples=40, deadline=None)
@given(BOOTS, BOOTS, st.integers(-40, 40))
def test_the_interval_holds_the_shifts_that_are_not_rejected(a, b, shift):
    """One-sided at 5 % each way: a shift outside the interval is rejected, one inside is not."""
    span = compare_unblocked(a, b, 0.90).interval
    typical = swap_differences(a, b)
    below, above = (typical <= shift).sum() + 1, (typical >= shift).sum() + 1
    rejected = span.attained < 1 and min(below, above) / (len(typical) + 1) <= (1 - span.attained) / 2 + 1e-9
    if shift < span.low or shift > span.high:
        assert rejected
    if span.low < shift < span.high:
        assert not rejected


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        a, b = rng.normal(0, 1, 5), rng.normal(2, 1, 5)
        span = compare_unblocked(a, b, 0.90).interval
        inside += span.low <= 2 <= span.high
    assert inside / 200 >= 0.85


@settings(max_examples=60, deadline=None)
@given(BOOTS, BOOTS, st.integers(1, 40))
def test_tost_says_what_the_interval_says(a, b, margin):
    span = compare_unblocked(a, b, 0.90).interval
    passed = tost_p(swap_differences(a, b), margin) <= 0.05 + 1e-12
    assert passed == span.inside(margin)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=5, max_size=8), st.integers(1, 25))
def test_tost_over_blocks(steps, margin):
    from dsbench.stats.samples import interval

    assert (tost_p(subset_means(steps), margin) <= 0.05 + 1e-12) == interval(steps, 0.90).inside(margin)


def test_many_boots_agree_with_the_t_tests():
    tost = pytest.importorskip("statsmodels.stats.weightstats").ttost_ind
    rng = np.random.default_rng(2)
    a, b = rng.normal(0, 1, 30), rng.normal(0.1, 1, 30)
    tests, beside = compare_unblocked(a, b, 0.90), welch(a, b)
    assert tests.interval.low == pytest.approx(beside.ci90[0], abs=0.06)
    assert tests.interval.high == pytest.approx(beside.ci90[1], abs=0.06)
    assert tests.permutation_p == pytest.approx(beside.p, abs=0.03)
    assert tost_p(swap_differences(a, b), 0.6) == pytest.approx(tost(b, a, -0.6, 0.6)[0], abs=0.02)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=8, max_size=14, unique=True), st.integers(0, 3), st.booleans())
def test_ranks_and_means_part_as_the_pairs_and_the_interval_say(readings, wild, candidate):
    """Against the median of the differences of all pairs; up to three boots of one arm are far out."""
    half = len(readings) // 2
    a, b = sorted(readings)[:half], sorted(readings)[half:]
    for i in range(wild):
        (b if candidate else a)[i] += (-1 if candidate else 1) * 10**7
    tests = compare_unblocked(a, b, 0.90)
    shift = float(np.median(np.subtract.outer(b, a)))
    side = np.sign(tests.difference)
    agree = np.sign(shift) == side and min(side * tests.interval.low, side * tests.interval.high) > 0
    assert bool(tests.parted(0.05)) == (tests.test == MANN_WHITNEY and tests.mann_whitney_p <= 0.05 and not agree)


def test_one_wild_boot_turns_no_p_of_the_ranks_into_a_loss():
    a, b = range(100, 108), [110, 111, 112, 113, 114, 115, 116, 1]
    tests = compare_unblocked(a, b, 0.90)
    assert (tests.p <= 0.05, tests.difference < 0) == (True, True)
    assert tests.parted(0.05).endswith("higher in 56 of 64 pairs, but its mean is lower")
    assert tests.parted(0.005) == "", "nothing was to be claimed at that level"
    milder = compare_unblocked(a, [*b[:-1], 60], 0.90)
    assert milder.parted(0.05).endswith("but the interval of the difference of the means holds 0")
    assert compare_unblocked(a, b[:-1], 0.90).parted(0.05) == ""


def test_wild_boots_do_not_raise_false_claims_and_the_rule_costs_normal_boots_little():
    """No claim is added, so none can be false that was not before; of normal boots one in a hundred is lost at most."""
    rng = np.random.default_rng(11)

    def claims(draw, shift):
        tests = [compare_unblocked(draw(), draw() + shift, 0.90) for _ in range(300)]
        fired = [t for t in tests if t.p <= 0.05]
        return len(fired) / 300, sum(not t.parted(0.05) for t in fired) / 300

    alone, kept = claims(lambda: rng.standard_normal(7), 1.7)
    assert alone > 0.7
    assert kept >= alone - 0.01
    for draw in (lambda: rng.standard_normal(7), lambda: rng.standard_t(2, 7)):
        assert claims(draw, 0.0)[1] <= 0.05 + 2.6 * (0.05 * 0.95 / 300) ** 0.5


def test_degenerate_arms():
    assert compare_unblocked([5], [5], 0.90).permutation_p == 1.0
    assert compare_unblocked([5, 5, 5], [5, 5, 5], 0.90).p == 1.0
    assert compare_unblocked([5], [6], 0.90).interval.attained == 1
    assert welch([5], [6, 7]) is None
    assert welch([5, 5], [6, 6]) is None
    assert (pooled_sd([1], [2]), pooled_sd([1, 3], [5])) == (None, pytest.approx(2**0.5))
    for bad in ([], [float("nan"), 1]):
        with pytest.raises(ValueError, match="at least one boot"):
            compare_unblocked(bad, [1, 2], 0.90)
    assert compare_unblocked([1, 2], [4, 6], 0.9).difference == fmean([4, 6]) - 1.5


@pytest.mark.parametrize("n", [10, 11, 12, 40])
def test_arms_fully_apart_reach_the_smallest_p_where_assignments_are_drawn_too(n):
    a, b = [float(i // 2) for i in range(n)], [100.0 + i // 2 for i in range(n)]
    assert compare_unblocked(a, b, 0.90).test == PERMUTATION
    assert permutation_p(a, b) == permutation_p(b, a) == pytest.approx(smallest_p(n, n), rel=1e-12)
    assert permutation_p([*a[:-1], b[0]], [a[-1], *b[1:]]) > smallest_p(n, n)


@pytest.mark.parametrize(("n_a", "n_b"), [(1, 4), (2, 3), (2, 7), (3, 8), (5, 4)])
def test_arms_of_unequal_size_reach_the_smallest_p_and_no_less(n_a, n_b):
    """Two-sided is twice the smaller tail for every test, so that the smallest p is 2 / C for unequal arms too."""
    from dsbench.stats import ratios
    from dsbench.stats.power import smallest_effect_unblocked

    least = 2 / comb(n_a + n_b, n_a)
    tests = compare_unblocked(range(n_a), range(100, 100 + n_b), 0.90)
    assert tests.smallest_p == pytest.approx(least)
    assert (tests.mann_whitney_p, tests.permutation_p) == (pytest.approx(least), pytest.approx(least))
    if n_a > 1:
        counts = [[(n, 1000) for n in range(n_a)], [(500 + n, 1000) for n in range(n_b)]]
        assert ratios.permutation_p(*counts) == pytest.approx(least)
        assert smallest_effect_unblocked(1.0, n_a, n_b, least * 0.99) is None
        assert smallest_effect_unblocked(1.0, n_a, n_b, least * 1.01) > 0

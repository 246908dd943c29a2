"""The fast exact tests against scipy's permutation test: the same p to the last tie."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from dsbench.stats import ratios, samples, unblocked
from dsbench.stats.assignments import DRAWN, assignments

# Whole numbers from a small range: ties are common. Thirds and tenths: ties that rounding would break.
DIFFERENCES = st.sampled_from([1.0, 0.1, 1 / 3, 1e7]).flatmap(
    lambda unit: st.lists(st.integers(-6, 6).map(lambda n: n * unit), min_size=2, max_size=9).filter(any)
)
ARMS = st.sampled_from([1.0, 0.1, 1 / 3]).flatmap(
    lambda unit: st.tuples(*[st.lists(st.integers(0, 9).map(lambda n: n * unit), min_size=2, max_size=6)] * 2)
)
COUNTS = st.lists(st.tuples(st.integers(0, 20), st.integers(20, 24)), min_size=2, max_size=5)
SLOW = settings(max_examples=30, deadline=None)


def scipys(data, statistic, kind):
    result = permutation_test(data, statistic, permutation_type=kind, vectorized=True, n_resamples=10**6, axis=-1)
    return float(result.pvalue)


@SLOW
@given(DIFFERENCES)
def test_sign_flips(differences):
    largest = max(map(abs, differences))
    expected = scipys((differences,), lambda x, axis: np.round(np.mean(x, axis=axis) / largest, 9), "samples")
    assert samples.sign_flip_p(differences) == pytest.approx(expected, abs=1e-12)


@SLOW
@given(ARMS)
def test_boots_between_two_arms(arms):
    a, b = arms
    spread = np.ptp([*a, *b]) or 1.0
    expected = scipys(
        (a, b), lambda x, y, axis: np.round((y.mean(axis=axis) - x.mean(axis=axis)) / spread, 9), "independent"
    )
    assert unblocked.permutation_p(a, b) == pytest.approx(expected, abs=1e-12)


@SLOW
@given(COUNTS, COUNTS)
def test_counts_stay_with_their_boot(a, b):
    counts = np.array([*a, *b], dtype=float)

    def difference(x, y, axis):
        first, second = counts[x.astype(int)].sum(axis=axis - 1), counts[y.astype(int)].sum(axis=axis - 1)
        return np.round(second[..., 0] / second[..., 1] - first[..., 0] / first[..., 1], 9)

    numbers = np.arange(len(a), dtype=float), np.arange(len(a), len(counts), dtype=float)
    assert ratios.permutation_p(a, b) == pytest.approx(scipys(numbers, difference, "independent"), abs=1e-12)


@given(st.integers(1, 6), st.integers(1, 6))
def test_all_assignments_are_there_once(n_a, n_b):
    taken = assignments(n_a, n_b, 1000)
    assert taken.shape == (comb(n_a + n_b, n_b), n_a + n_b)
    assert (taken.sum(axis=1) == n_b).all()
    assert len(np.unique(taken, axis=0)) == len(taken)


def test_more_are_drawn_the_same_each_time_and_fewer_of_many_boots():
    taken = assignments(12, 12, 20_000)
    assert taken.shape == (DRAWN, 24)
    assert (taken.sum(axis=1) == 12).all()
    assignments.cache_clear()
    assert (assignments(12, 12, 20_000) == taken).all()
    assert len(assignments(2000, 2000, 20_000)) == 1000


@pytest.mark.parametrize("shift", [0.0, 0.6, 1.2])
def test_a_drawn_p_is_close_to_the_enumerated_one(shift):
    rng = np.random.default_rng(4)
    a, b = rng.normal(0, 1, 9), rng.normal(shift, 1, 9)
    exact = unblocked.permutation_p(a, b)
    drawn = assignments(9, 9, 1000) @ np.concatenate([a, b]) / 9
    rest = (a.sum() + b.sum()) / 9 - drawn
    p = samples.two_sided(samples.level(drawn - rest), samples.level(b.mean() - a.mean()), drawn=True)
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact / DRAWN) + 1e-4)


def test_what_has_no_statistic_counts_against_the_claim():
    statistics = np.array([0.0, 1.0, 2.0, np.nan])
    assert samples.two_sided(statistics, 2.0, drawn=False) == 1.0
    assert samples.two_sided(statistics[:3], 2.0, drawn=False) == pytest.approx(2 / 3)


def test_items_that_did_not_move_cost_nothing_and_still_count():
    """The spread of subset means over many items is that of the moved ones, whatever zeros are beside them."""
    moved = [1.0] * 12 + [-1.0] * 8
    few, many = (samples.interval([*moved, *[0.0] * n], 0.90) for n in (480, 4980))
    assert few.low < 4 / 500 < few.high
    for span, n in ((few, 500), (many, 5000)):
        assert span.high - span.low == pytest.approx(2 * 1.645 * np.sqrt(20) / n, rel=0.15)


def test_many_moved_items_are_drawn_in_fewer_patterns():
    values = np.random.default_rng(1).normal(0.01, 1, 20_000)
    assert 0 < samples.sign_flip_p(values) <= 1
    span = samples.interval(values, 0.90)
    assert span.low < values.mean() < span.high

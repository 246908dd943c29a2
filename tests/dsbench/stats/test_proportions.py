"""Totals of two runs, against statsmodels and against simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.decide import decide
from dsbench.stats.proportions import compare_proportions, newcombe, wilson

SHARES = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(SHARES, SHARES)
def test_swapping_the_arms_turns_the_difference(a, b):
    there, back = compare_proportions(*a, *b), compare_proportions(*b, *a)
    assert there.difference == pytest.approx(-back.difference)
    assert there.fisher_p == pytest.approx(back.fisher_p)
    assert there.interval.low == pytest.approx(-back.interval.high)
    assert there.interval.low - 1e-9 <= there.difference <= there.interval.high + 1e-9


def test_the_z_tests_are_those_of_statsmodels():
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    tests = compare_proportions(1239, 1319, 1253, 1319)
    z, p = proportion.proportions_ztest([1253, 1239], [1319, 1319])
    assert (tests.z_pooled, tests.p_z) == (pytest.approx(z), pytest.approx(p))
    low, high = proportion.confint_proportions_2indep(1253, 1319, 1239, 1319, method="newcomb", alpha=0.1)
    assert (tests.interval.low, tests.interval.high) == (pytest.approx(low), pytest.approx(high))
    assert wilson(9, 10, 0.95) == pytest.approx(proportion.proportion_confint(9, 10, method="wilson"))


def test_items_needed_agree_with_the_power_they_promise():
    tests = compare_proportions(480, 500, 470, 500)
    n = tests.items_needed(0.02, 0.05)
    shown = compare_proportions(round(0.95 * n), n, round(0.95 * n), n).visible(0.05)
    assert shown == pytest.approx(0.02, rel=0.02)
    assert tests.items_needed(0.0, 0.05) is None


def test_the_interval_covers():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        span = newcombe(int(rng.binomial(200, 0.9)), 200, int(rng.binomial(200, 0.93)), 200, 0.90)
        inside += span.low <= 0.03 <= span.high
    assert inside >= 870


def test_no_items_no_share():
    with pytest.raises(ValueError, match="a share needs items"):
        compare_proportions(0, 0, 1, 2)
    assert compare_proportions(10, 10, 10, 10).z_pooled == 0.0


def test_by_simulation_so_many_items_see_an_effect_beyond_the_margin_or_that_there_is_none():
    share, margin, effect = 0.8, 0.03, 0.035
    tests = compare_proportions(800, 1000, 800, 1000)
    rng = np.random.default_rng(1)

    def power(n, change, word):
        drawn = rng.binomial(n, (share - change / 2, share + change / 2), size=(400, 2))
        return np.mean([_word(compare_proportions(int(a), n, int(b), n), margin) == word for a, b in drawn])

    assert power(tests.items_needed(effect, 0.05, margin), effect, "improved") == pytest.approx(0.8, abs=0.06)
    assert power(tests.items_needed(effect, 0.05), effect, "improved") < 0.72
    assert power(tests.items_equivalent(margin, 0.90), 0.0, "equivalent") == pytest.approx(0.8, abs=0.06)
    assert tests.items_needed(margin, 0.05, margin) is None
    n = tests.items_needed(effect, 0.05, margin)
    assert compare_proportions(round(share * n), n, round(share * n), n).visible(0.05, margin) <= effect


def _word(tests, margin):
    return decide(tests.difference, margin=margin, better="up", p=tests.fisher_p, interval=tests.interval, alpha=0.05)

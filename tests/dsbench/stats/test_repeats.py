import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from dsbench.stats.items import mcnemar_p
from dsbench.stats.repeats import repeat_p

ANSWERS = st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=30)


def test_boots_that_agree_repeat():
    assert repeat_p([[1, 1, 1], [0, 0, 0]]) == 1.0
    assert repeat_p([[1], [0]]) == 1.0
    assert repeat_p(np.empty((0, 2))) == 1.0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_two_boots_are_mcnemars(answers):
    up, down = (sum(b - a == sign for a, b in answers) for sign in (1, -1))
    assert repeat_p(answers) == pytest.approx(mcnemar_p(up, down))


@given(ANSWERS)
def test_more_boots_are_cochrans(answers):
    """His formula, from the sums of rows and columns of zeros and ones."""
    rows, columns = [sum(row) for row in answers], [sum(column) for column in zip(*answers, strict=True)]
    below = 3 * sum(rows) - sum(row * row for row in rows)
    if below:
        q = 2 * (3 * sum(column * column for column in columns) - sum(columns) ** 2) / below
        assert repeat_p(answers) == pytest.approx(chi2.sf(q, 2))
    else:
        assert repeat_p(answers) == 1.0


@given(ANSWERS, st.permutations(range(3)))
def test_the_order_of_boots_does_not_matter(answers, order):
    assert repeat_p([[row[i] for i in order] for row in answers]) == pytest.approx(repeat_p(answers))


@pytest.mark.parametrize(("items", "boots"), [(24, 2), (200, 2), (24, 3), (200, 3), (200, 8)])
def test_by_simulation_flips_of_single_items_are_no_difference_of_boots(items, boots):
    rng = np.random.default_rng(boots)
    ps = [repeat_p(rng.random((items, boots)) < rng.beta(5, 1, (items, 1))) for _ in range(1500)]
    for level in (0.05, 0.025):
        assert np.mean(np.array(ps) <= level) <= level + 3 * np.sqrt(level / 1500)


def test_by_simulation_clusters_that_flip_together_are_no_difference_of_boots():
    rng, ps = np.random.default_rng(2), []
    for _ in range(1000):
        together = np.repeat(rng.random((15, 2)) < 0.8, 9, axis=0).reshape(15, 9, 2)
        ps.append(repeat_p(together.sum(axis=1)))
    assert np.mean(np.array(ps) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 / 1000)


@pytest.mark.parametrize(("boots", "least"), [(2, 0.6), (8, 0.9)])
def test_luck_that_all_items_of_a_boot_share_is_seen(boots, least):
    rng = np.random.default_rng(3)
    seen = []
    for _ in range(100):
        luck = 1.5 * rng.standard_normal(boots)
        seen.append(repeat_p(rng.random((200, boots)) < 1 / (1 + np.exp(-1 - luck))) <= 0.025)
    assert np.mean(seen) > least

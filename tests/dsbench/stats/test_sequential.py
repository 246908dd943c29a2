"""Levels of looks against published boundaries, and the error of the test that verdicts use, exactly."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dsbench.stats.samples import sign_flip_p, smallest_p
from dsbench.stats.sequential import KEPT, alpha_at, brownian_levels, choose_looks, spent


def levels(looks, alpha=0.05, sides=2):
    return [alpha_at(i, looks, alpha, sides) for i in range(1, len(looks) + 1)]


@pytest.mark.parametrize(
    ("looks", "z"),
    [
        # Lan and DeMets' spending of O'Brien-Fleming type, equal steps, two-sided 5 %: Jennison and Turnbull, table 7.1
        # lists the shape, the figures are those of the R package gsDesign (sfLDOF).
        ((1, 2), [2.9626, 1.9686]),
        ((1, 2, 3), [3.7103, 2.5114, 1.9930]),
        ((1, 2, 3, 4, 5), [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
    ],
)
def test_boundaries_are_the_published_ones(looks, z):
    found = np.array(brownian_levels(looks, 0.05))
    assert norm.isf(found / 2) == pytest.approx(z, abs=2e-3)
    # Two sides of 5 % are one side of 2.5 %, but for paths that cross both boundaries.
    assert brownian_levels(looks, 0.025, sides=1) == pytest.approx(found / 2, rel=1e-3)


def test_one_look_is_the_plain_test():
    assert alpha_at(1, [7]) == pytest.approx(0.05)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True), st.sampled_from([0.01, 0.05, 0.1]))
@example([1, 10], 0.01)  # so early that the boundary is at the edge of what can be computed
@example([1, 2, 60], 0.05)
@settings(max_examples=25)
def test_no_look_takes_more_than_all_and_all_take_no_less(looks, alpha):
    looks = sorted(looks)
    found = levels(looks, alpha)
    given_out = alpha if len(looks) == 1 else KEPT * alpha
    assert all(0 < level <= given_out + 1e-9 for level in found)
    assert sum(found) >= given_out - 1e-9, "Boole: what is spent is at most the sum of the levels"
    assert found[0] == pytest.approx(spent(looks[0] / looks[-1], given_out), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("most", range(1, 41))
def test_no_look_is_chosen_at_which_the_test_could_not_fire(most):
    looks = choose_looks(most)
    assert (looks == []) == (most < 6)
    assert all(smallest_p(n) <= alpha_at(i, looks) for i, n in enumerate(looks, start=1))
    assert looks[-1:] in ([], [most])


@pytest.mark.parametrize(("look", "looks"), [(0, [5]), (3, [5, 6]), (1, [6, 5]), (1, [0, 5])])
def test_looks_that_are_none(look, looks):
    with pytest.raises(ValueError, match="looks must rise"):
        alpha_at(look, looks)


# --- false positives ------------------------------------------------------------------------------------------------


def every_p(sizes):
    """p of the sign-flip test for every pattern of signs: [2^n]; the p of pattern i belongs to its own data."""
    n = len(sizes)
    signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    means = np.abs(signs @ sizes) / n
    ordered = np.sort(means)
    return signs, (2**n - np.searchsorted(ordered, means * (1 - 1e-9) - 1e-15)) / 2**n


def error(sizes, looks, at):
    """Exact probability, over the signs that are coin tosses in an A/A, that some look rejects."""
    n = looks[-1]
    rejected = np.zeros(2**n, dtype=bool)
    for blocks, level in zip(looks, at, strict=True):
        _, p = every_p(sizes[:blocks])
        # Pattern i of n blocks begins with pattern i mod 2^blocks.
        rejected |= np.tile(p <= level, 2 ** (n - blocks))
    return rejected.mean()


NOISE = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy": lambda rng, n: rng.standard_t(2, n),
    "skewed sizes": lambda rng, n: rng.lognormal(0, 1.5, n),
    "alike": lambda rng, n: 1 + 0.01 * rng.standard_normal(n),
}


def test_the_enumeration_is_the_test_that_verdicts_use():
    sizes = np.abs(np.random.default_rng(1).standard_normal(9))
    signs, p = every_p(sizes)
    for i in (0, 1, 77, 300, 511):
        assert sign_flip_p(signs[i] * sizes) == pytest.approx(p[i])


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("looks", [(9, 12), (8, 11, 14)])
def test_a_a_false_positives_of_all_looks_stay_within_alpha(noise, looks):
    rng = np.random.default_rng(5)
    errors = [error(np.abs(NOISE[noise](rng, looks[-1])), looks, levels(looks)) for _ in range(40)]
    assert np.mean(errors) <= 0.05
    # Each set of sizes keeps its own error nearly, and always the sum of the levels.
    assert max(errors) <= sum(levels(looks))
    if noise == "normal":
        assert np.mean(errors) > 0.035, "the looks spend what they are given"


def test_looking_without_spending_would_be_wrong_more_often():
    rng = np.random.default_rng(5)
    errors = [error(np.abs(rng.standard_normal(14)), (8, 11, 14), (0.05,) * 3) for _ in range(10)]
    assert np.mean(errors) > 0.08

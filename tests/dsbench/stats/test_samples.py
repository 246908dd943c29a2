import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.stats.samples import blocks_to_fire, interval, sign_flip_p, smallest_p

# Differences on a grid: ties and zeros are common, and rounding cannot decide a comparison.
GRID = st.integers(-40, 40).map(lambda n: n / 8)
BLOCKS = st.lists(GRID, min_size=1, max_size=8)


def p_by_hand(values):
    """Share of all sign patterns whose sum is at least as far from 0, counted one by one."""
    seen = abs(sum(values))
    sums = [abs(sum(s * v for s, v in zip(signs, values, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(values))]  # fmt: skip
    return sum(total >= seen - 1e-12 for total in sums) / len(sums)


def test_smallest_p_of_the_reference():
    assert smallest_p(5) == 0.0625  # measurement.md, section 2
    assert smallest_p(6) == 0.03125
    assert blocks_to_fire(0.05) == 6
    assert sign_flip_p([1, 2, 3, 4, 5]) == 0.0625
    assert sign_flip_p([1, 2, 3, 4, 5, 6]) == 0.03125


@given(BLOCKS)
def test_p_is_the_enumeration(values):
    assert sign_flip_p(values) == pytest.approx(p_by_hand(values))


@given(BLOCKS)
def test_p_does_not_depend_on_sign_order_or_scale(values):
    p = sign_flip_p(values)
    assert sign_flip_p([-v for v in values]) == pytest.approx(p)
    assert sign_flip_p(values[::-1]) == pytest.approx(p)
    assert sign_flip_p([4 * v for v in values]) == pytest.approx(p)
    assert p >= smallest_p(len(values)) - 1e-12


@given(BLOCKS, GRID, st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_interval_is_what_the_test_does_not_reject(values, centre, confidence):
    """Each centre is inside exactly if the test of the shifted differences does not reject it."""
    span = interval(values, confidence)
    rejected = p_by_hand([v - centre for v in values]) <= 1 - confidence + 1e-12
    on_an_end = min(abs(centre - span.low), abs(centre - span.high)) < 1e-9
    assert on_an_end or rejected == (not span.low <= centre <= span.high)


@given(BLOCKS)
def test_wider_confidence_gives_a_wider_interval(values):
    narrow, wide = interval(values, 0.8), interval(values, 0.95)
    assert wide.low <= narrow.low <= narrow.high <= wide.high
    assert wide.attained >= 0.95
    assert narrow.attained >= 0.8


def test_five_blocks_give_a_90_interval_but_no_95():
    values = [0.01, -0.02, 0.005, 0.0, 0.03]
    span = interval(values, 0.90)
    assert (span.low, span.high, span.attained) == (-0.02, 0.03, 0.9375)
    assert math.isinf(interval(values, 0.95).high)
    assert not interval(values, 0.95).inside(1e9)


def test_inside_is_strict():
    span = interval([0.02, 0.02, 0.02, 0.02, 0.02], 0.9)
    assert not span.inside(0.02)
    assert span.inside(0.0201)


def test_many_blocks_use_a_fixed_draw():
    values = np.random.default_rng(3).normal(0.02, 0.01, 40).tolist()
    assert sign_flip_p(values) == sign_flip_p(values) < 0.001
    span = interval(values, 0.90)
    assert span == interval(values, 0.90)
    standard_error = np.std(values, ddof=1) / math.sqrt(40)
    assert span.low == pytest.approx(np.mean(values) - 1.68 * standard_error, abs=0.4 * standard_error)


@given(st.lists(st.integers(1, 50), min_size=17, max_size=60), st.integers(0, 5), st.sampled_from([1, -1]))
def test_many_blocks_reach_the_smallest_p_and_no_less(sizes, zeros, sign):
    """Patterns are drawn from 17 blocks on, and one that is in 2^40 is never among them."""
    one_way = [sign * size for size in sizes]
    assert sign_flip_p([*one_way, *[0] * zeros]) == pytest.approx(smallest_p(len(sizes)), rel=1e-12)
    but_one = [*one_way[:-1], -one_way[-1]]
    assert sign_flip_p(but_one) >= 2 / (1 + 2**16) > smallest_p(17)
    assert sign_flip_p([-value for value in one_way]) == sign_flip_p(one_way)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1]])
def test_what_cannot_be_tested(values):
    with pytest.raises(ValueError, match="finite difference"):
        sign_flip_p(values)


@pytest.mark.parametrize("blocks", [5, 6, 8])
def test_by_simulation_an_aa_is_called_different_at_most_at_the_level(blocks):
    """Skewed, heavy noise with drift: the level holds because order in a block is random, not because of a shape."""
    rng = np.random.default_rng(blocks)
    runs, alarms, covered = 1500, 0, 0
    for _ in range(runs):
        drift = rng.normal(0, 0.3, blocks)
        readings = drift[:, None] + rng.standard_exponential((blocks, 2)) ** 1.5
        differences = readings[:, 1] - readings[:, 0]
        alarms += sign_flip_p(differences) <= 0.05
        span = interval(differences, 0.90)
        covered += span.low <= 0 <= span.high
    error = 2.5 * math.sqrt(0.05 * 0.95 / runs)
    assert alarms / runs <= 0.05 + error
    assert (alarms == 0) == (blocks < 6)
    assert covered / runs >= 0.90 - 2.5 * math.sqrt(0.9 * 0.1 / runs)

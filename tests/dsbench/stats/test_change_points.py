"""Change points: steps are found where they are, noise gives few, and constants none."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.stats.change_points import exact_changes, noise_of, noisy_changes

numbers = st.lists(st.floats(min_value=-1e9, max_value=1e9, allow_nan=False), max_size=20)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_exact_values_change_wherever_they_differ(values):
    places = exact_changes(values)
    bounds = [0, *places, len(values)]
    levels = [values[a:b] for a, b in pairwise(bounds)]
    assert all(len(set(level)) <= 1 for level in levels)
    assert all(a[-1] != b[0] for a, b in pairwise(levels) if a and b)


@given(numbers)
def test_places_are_inside_and_in_order(values):
    places = noisy_changes(values)
    assert places == sorted(set(places))
    assert all(2 <= place <= len(values) - 2 for place in places)


@given(numbers, st.integers(-40, 40))
def test_the_unit_does_not_matter(values, power):
    assert noisy_changes([value * 2.0**power for value in values]) == noisy_changes(values)


@pytest.mark.parametrize("step", [-0.1, 0.1])
def test_steps_are_found_where_they_are(step):
    rng = random.Random(4)
    values = [100 * (1 + 0.01 * rng.gauss(0, 1) + (step if 8 <= i < 18 else 0)) for i in range(26)]
    assert noisy_changes(values) == [8, 18]


def test_an_outlier_is_no_level():
    values = [1.0, 1.1, 0.9, 1.0, 1.1, 5.0, 0.9, 1.0, 1.1, 1.0]
    assert all(b - a >= 2 for a, b in pairwise([0, *noisy_changes(values), len(values)]))


def test_few_figures_and_constants_have_none():
    assert noisy_changes([1, 2, 1, 2, 100]) == []
    assert noisy_changes([3.0] * 30) == []
    assert noise_of([1.0]) == 0.0


def test_steps_of_values_that_mostly_repeat():
    assert noisy_changes([0.9] * 8 + [0.8] * 8) == [8]


def test_noise_alone_gives_one_in_at_most_8_percent_of_series():
    rng = random.Random(1)
    alarms = sum(bool(noisy_changes([rng.gauss(0, 1) for _ in range(12)])) for _ in range(400))
    assert alarms <= 32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.stats.exact import compare_exact


@pytest.mark.parametrize(
    ("baseline", "candidate", "outcome"),
    [
        ([5, 5], [5, 5], "equal"),
        ([5, 5], [4, 4], "differs"),
        ([5, 5], [5, 4], "candidate-varies"),
        ([5, 4], [5, 5], "baseline-varies"),
        ([5, 4], [5, 4], "baseline-varies"),
        ([5], [5], "equal"),
        ([[1, 2]], [[1, 3]], "differs"),
    ],
)
def test_outcomes(baseline, candidate, outcome):
    assert compare_exact(baseline, candidate) == outcome


def test_nothing_is_not_equal_to_nothing():
    with pytest.raises(ValueError, match="at least one boot"):
        compare_exact([], [1])


@given(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2), min_size=1), st.randoms())
def test_the_order_of_boots_does_not_matter(baseline, candidate, random):
    outcome = compare_exact(baseline, candidate)
    random.shuffle(baseline)
    random.shuffle(candidate)
    assert compare_exact(baseline, candidate) == outcome

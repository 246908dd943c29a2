import numpy as np
import pytest

from dsbench.stats.ratios import permutation_p, pooled, smallest_p


def boots(rng, number, rate, spread=0.0, drafts=200):
    rates = np.clip(rate + rng.normal(0, spread, number), 0.01, 0.99)
    return [(int(rng.binomial(drafts, r)), drafts) for r in rates]


def test_the_ratio_of_sums_weighs_boots_by_their_counts():
    assert pooled([(1, 2), (9, 10)]) == pytest.approx(10 / 12)
    with pytest.raises(ValueError, match="at least one count"):
        pooled([(0, 0)])


def test_arms_fully_apart_reach_the_smallest_p():
    low, high = [(40 + i, 100) for i in range(4)], [(60 + i, 100) for i in range(4)]
    assert permutation_p(low, high) == pytest.approx(smallest_p(4, 4)) == pytest.approx(2 / 70)
    assert permutation_p(high, low) == pytest.approx(2 / 70)


def test_equal_arms_give_no_reason():
    same = [(40, 100), (44, 101), (39, 98)]
    assert permutation_p(same, same) == 1.0


def test_what_could_not_fire():
    assert smallest_p(2, 2) == pytest.approx(1 / 3)
    assert smallest_p(1, 1) == 1.0
    assert permutation_p([(1, 9)], [(9, 9), (9, 9)]) == 1.0


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_by_simulation_equal_arms_are_told_apart_at_most_alpha_of_the_time(spread):
    rng = np.random.default_rng(5)
    ps = [permutation_p(boots(rng, 5, 0.5, spread), boots(rng, 5, 0.5, spread)) for _ in range(300)]
    assert np.mean(np.array(ps) <= 0.05) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_by_simulation_a_loss_of_ten_points_is_seen():
    rng = np.random.default_rng(6)
    ps = [permutation_p(boots(rng, 5, 0.5), boots(rng, 5, 0.4)) for _ in range(50)]
    assert np.mean(np.array(ps) <= 0.05) > 0.8

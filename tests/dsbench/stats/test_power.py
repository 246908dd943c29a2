import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, mannwhitneyu, norm

from dsbench.stats.items import compare_items, mcnemar_p, tango_interval
from dsbench.stats.power import (
    POWER,
    blocks_equivalent,
    blocks_needed,
    boots_equivalent_unblocked,
    boots_needed_unblocked,
    boots_normal,
    boots_to_fire,
    items_equivalent,
    mcnemar_power,
    ratio_sd,
    smallest_effect,
    smallest_effect_unblocked,
    smallest_law,
    smallest_share,
    tango_power,
    visible,
)
from dsbench.stats.samples import ends, interval
from dsbench.stats.unblocked import swap_differences

ALPHA = 0.05


def test_nothing_is_visible_where_the_test_cannot_fire():
    assert smallest_effect(0.01, 5, ALPHA) is None
    assert smallest_effect(0.01, 6, ALPHA) is not None


def test_six_blocks_need_all_six_on_one_side():
    """At 6 blocks the test fires only if all signs agree: P(one sign) = 0.8^(1/6)."""
    assert visible(6, ALPHA) == pytest.approx(norm.ppf(POWER ** (1 / 6)), rel=0.06)


@pytest.mark.parametrize("blocks", [6, 8, 12, 13])
def test_the_power_is_what_it_says(blocks):
    effect = visible(blocks, ALPHA)
    rng = np.random.default_rng(blocks)
    runs = 400
    spans = [interval(rng.normal(effect, 1.0, blocks), 1 - ALPHA) for _ in range(runs)]
    hits = sum(not span.low <= 0 <= span.high for span in spans) / runs
    assert hits == pytest.approx(POWER, abs=3.0 * math.sqrt(0.16 / runs) + 0.02)


@given(st.floats(0.001, 0.5), st.floats(0.002, 0.2))
def test_blocks_needed_is_the_fewest(sd, effect):
    blocks = blocks_needed(effect, sd, ALPHA)
    assert blocks is not None
    assert smallest_effect(sd, blocks, ALPHA) <= effect
    if blocks > 6:
        assert smallest_effect(sd, blocks - 1, ALPHA) > effect


def test_the_visible_effect_shrinks_with_blocks():
    seen = [visible(n, ALPHA) for n in range(6, 40)]
    assert all(a > b for a, b in itertools.pairwise(seen))


def test_no_effect_is_never_seen():
    assert blocks_needed(0.0, 0.01, ALPHA) is None
    assert blocks_needed(1e-9, 1.0, ALPHA) is None
    assert blocks_needed(0.02, 0.0, ALPHA) == 6


def test_blocks_see_nothing_within_the_margin():
    for blocks in (6, 9, 12, 20):
        assert smallest_effect(0.001, blocks, ALPHA, margin=0.02) > 0.02
        assert smallest_effect(0.05, blocks, ALPHA, margin=0.0) == smallest_effect(0.05, blocks, ALPHA)
        assert smallest_effect(0.0, blocks, ALPHA, margin=0.02) == 0.02


@pytest.mark.parametrize("blocks", [6, 10, 13])
def test_the_power_with_a_margin_is_what_it_says(blocks):
    """At an effect near the margin the estimate has to be beyond it, too."""
    sd, margin = 0.01, 0.02
    effect = smallest_effect(sd, blocks, ALPHA, margin)
    drawn = np.random.default_rng(blocks).normal(effect, sd, (300, blocks))
    hits = sum(row.mean() > margin and not _holds_zero(row) for row in drawn) / len(drawn)
    assert hits == pytest.approx(POWER, abs=3.0 * math.sqrt(0.16 / len(drawn)) + 0.02)


def _holds_zero(row):
    span = interval(row, 1 - ALPHA)
    return span.low <= 0 <= span.high


def test_without_blocks_four_boots_an_arm_can_fire():
    assert [smallest_effect_unblocked(1.0, n, n, ALPHA) is None for n in (2, 3, 4, 5)] == [True, True, False, False]
    assert boots_to_fire(ALPHA) == 4


@pytest.mark.parametrize("boots", [(4, 4), (5, 5), (6, 6), (4, 7), (9, 9)])
def test_the_power_without_blocks_is_what_it_says(boots):
    effect, rng = smallest_effect_unblocked(1.0, *boots, ALPHA), np.random.default_rng(sum(boots))
    first, second = rng.standard_normal((1500, boots[0])), rng.standard_normal((1500, boots[1])) + effect
    p = mannwhitneyu(first, second, axis=1, method="exact").pvalue
    assert (p <= ALPHA).mean() == pytest.approx(POWER, abs=0.04)


def test_boots_by_the_normal_approximation_are_those_of_the_review():
    """Four single-boot readings: 54 boots an arm for a 256 MiB buffer, about 930 for input reuse."""
    sd = float(np.std([20.33, 19.91, 19.92, 20.89], ddof=1))
    assert [boots_normal(effect, sd, ALPHA) for effect in (1.07, 0.5, 0.25, 0.06)] == [3, 14, 54, 931]
    assert [boots_needed_unblocked(effect, sd, ALPHA) for effect in (0.25, 0.06)] == pytest.approx([54, 931], abs=1)
    assert boots_normal(0.0, sd, ALPHA) is None
    assert boots_needed_unblocked(1.07, sd, ALPHA) >= boots_to_fire(ALPHA)


@pytest.mark.parametrize(("flips", "points"), [(0.02, 1.1), (0.04, 1.5), (0.06, 1.9)])
def test_gsm8k_sees_what_its_source_says(flips, points):
    """measurement.md, section 6.1: paired exact McNemar over 1,319 items."""
    assert 100 * smallest_share(1319, flips, ALPHA) == pytest.approx(points, abs=0.1)


def test_more_boots_and_no_margin_see_smaller_shares():
    one, two, four = (smallest_share(1319, 0.04, ALPHA, boots=n) for n in (1, 2, 4))
    assert one > two > four
    assert smallest_share(1319, 0.04, ALPHA, margin=0.015) > one
    assert smallest_share(1319, 0.04, ALPHA, boots=2, margin=0.01) > two
    assert smallest_share(5, 0.1, ALPHA) is None, "five items that are all lost have p = 0.0625"
    assert smallest_share(6, 0.1, ALPHA) == pytest.approx(POWER ** (1 / 6), abs=1e-4), "all six must be lost"
    with pytest.raises(ValueError, match="flips must be a share"):
        smallest_share(20, 0.0, ALPHA)


def seen_by_enumeration(items, flips, difference, margin):
    """Chance that the verdict calls a loss, over every number of gained and lost items."""
    p = cache(mcnemar_p)
    gained, lost = (flips - difference) / 2, (flips + difference) / 2
    total = 0.0
    for up in range(int(binom.isf(1e-9, items, gained)) + 1 if gained > 1e-12 else 1):
        left, share = items - up, lost / (1 - gained)
        downs = [
            down
            for down in range(up, int(binom.isf(1e-9, left, share)) + 1)
            if p(up, down) <= ALPHA and (down - up) / items > margin + 1e-12
        ]
        total += binom.pmf(up, items, gained) * binom.pmf(downs, left, share).sum()
    return total


@pytest.mark.parametrize(
    ("items", "flips", "margin"),
    [(390, 0.02, 0.02), (100, 0.02, 0.01), (100, 0.02, 0.02), (15, 1 / 15, 0.02), (78, 0.02, 0.02), (400, 0.10, 0.01)],
)
def test_the_smallest_share_is_seen_four_times_in_five_and_a_smaller_one_less(items, flips, margin):
    """Where few items flip by themselves the difference is larger than their share, and all of it goes one way."""
    least = smallest_share(items, flips, ALPHA, margin=margin)
    assert seen_by_enumeration(items, max(flips, least), least, margin) == pytest.approx(POWER, abs=1e-4)
    less = 0.9 * least
    assert seen_by_enumeration(items, max(flips, less), less, margin) < POWER
    assert least > margin


def test_thirteen_of_390_items_are_more_than_the_smallest_share():
    """As the stored dose lost them, none gained. Simulated items, compared as the verdict does."""
    least = smallest_share(390, 0.02, ALPHA, margin=0.02)
    assert 8 / 390 < least < 13 / 390
    rng, names = np.random.default_rng(11), [str(i) for i in range(390)]
    called = 0
    for _ in range(400):
        lost = rng.random(390) < least
        after = {name: 1.0 - float(bad) for name, bad in zip(names, lost, strict=True)}
        paired = compare_items(dict.fromkeys(names, 1.0), after)
        called += paired.p <= ALPHA and paired.difference < -0.02
    assert called / 400 == pytest.approx(POWER, abs=0.06)


@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_mcnemars_power_is_what_simulated_items_have(margin):
    items, flips, difference = 400, 0.10, 0.05
    rng = np.random.default_rng(3)
    draws = rng.multinomial(items, [(flips + difference) / 2, (flips - difference) / 2, 1 - flips], size=3000)
    p = cache(mcnemar_p)
    hits = np.mean([p(up, down) <= ALPHA and (up - down) / items > margin for up, down, _ in draws.tolist()])
    assert mcnemar_power(items, flips, difference, ALPHA, margin) == pytest.approx(hits, abs=0.03)


def test_a_ratio_spreads_by_its_counts_and_between_boots():
    rng = np.random.default_rng(4)
    assert np.std(rng.binomial(500, 0.7, 20_000) / 500) == pytest.approx(ratio_sd(0.7, 500), rel=0.02)
    assert ratio_sd(0.7, 1e12, 0.03) == pytest.approx(0.03)


@pytest.mark.parametrize("cells", [5, 20])
def test_an_evenly_spread_departure_from_a_law_is_seen(cells):
    n, alpha = 1000, 0.01
    law = np.full(cells + cells % 2, 1 / (cells + cells % 2))
    departure = smallest_law(len(law) - 1, n, alpha)
    off = law * (1 + 2 * departure * np.where(np.arange(len(law)) % 2, 1, -1))
    seen = np.random.default_rng(5).multinomial(n, off, size=2000)
    statistic = ((seen - n * law) ** 2 / (n * law)).sum(axis=1)
    assert (statistic > chi2.isf(alpha, len(law) - 1)).mean() == pytest.approx(POWER, abs=0.03)


# --- equivalence ----------------------------------------------------------------------------------------------------

MARGIN = 0.02
LOOSE = 3.0 * math.sqrt(0.16 / 400) + 0.01


@pytest.mark.parametrize("sd", [0.006, 0.012, 0.02])
def test_so_many_blocks_call_equal_arms_equivalent_as_often_as_they_say(sd):
    blocks = blocks_equivalent(MARGIN, sd, 0.90)
    drawn = np.random.default_rng(blocks).normal(0, sd, (400, blocks)).tolist()
    hits = np.mean([interval(steps, 0.90).inside(MARGIN) for steps in drawn])
    assert hits > POWER - LOOSE
    if blocks > 6:  # below, the next interval is one of another confidence
        assert hits < POWER + LOOSE
        fewer = np.mean([interval(steps[: blocks // 2], 0.90).inside(MARGIN) for steps in drawn])
        assert fewer < POWER - LOOSE


@pytest.mark.parametrize("sd", [0.0109, 0.0137])
def test_so_many_boots_call_equal_arms_equivalent_as_often_as_they_say(sd):
    boots = boots_equivalent_unblocked(MARGIN, sd, 0.90)
    drawn = np.random.default_rng(boots).normal(0, sd, (300, 2, boots)).tolist()
    hits = np.mean([ends(swap_differences(a, b), 0.90).inside(MARGIN) for a, b in drawn])
    assert hits == pytest.approx(POWER, abs=LOOSE)


@pytest.mark.parametrize(("flips", "margin"), [(0.04, 0.02), (0.02, 0.01), (0.3, 0.05)])
def test_so_many_items_call_equal_arms_equivalent_as_often_as_they_say(flips, margin):
    items, rng = items_equivalent(margin, flips, 0.90), np.random.default_rng(7)
    moved = rng.binomial(items, flips, 400)
    pairs = zip(rng.binomial(moved, 0.5).tolist(), moved.tolist(), strict=True)
    hits = np.mean([tango_interval(up, m - up, items, 0.90).inside(margin) for up, m in pairs])
    assert hits == pytest.approx(POWER, abs=LOOSE)


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 60), st.floats(0.01, 1.0), st.sampled_from([0.01, 0.02, 0.1]))
def test_the_power_of_the_score_interval_is_that_of_every_interval_it_may_be(items, flips, margin):
    chances = binom.pmf(range(items + 1), items, flips)
    exact = sum(
        chances[k] * binom.pmf(up, k, 0.5) * tango_interval(up, k - up, items, 0.90).inside(margin)
        for k in range(items + 1)
        if chances[k] > 1e-6
        for up in range(k + 1)
    )
    assert tango_power(items, flips, margin, 0.90) == pytest.approx(exact, abs=1e-3)


def test_no_margin_is_never_shown():
    assert blocks_equivalent(0.0, 0.01, 0.90) is None
    assert boots_equivalent_unblocked(0.0, 0.01, 0.90) is None
    assert items_equivalent(0.0, 0.1, 0.90) is None
    assert blocks_equivalent(1e-9, 1.0, 0.90) is None
    assert (blocks_equivalent(0.02, 0.0, 0.90), boots_equivalent_unblocked(0.02, 0.0, 0.90)) == (5, 3)
    with pytest.raises(ValueError, match="flips must be a share"):
        items_equivalent(0.01, 0.0, 0.90)


@pytest.mark.parametrize("sd", [0.015, 0.02])
def test_blocks_for_a_claim_beyond_the_margin_see_it_beyond_the_margin(sd):
    """Without the margin the same claim would take fewer blocks, and half of the verdicts would miss it."""
    claim, margin = 0.025, 0.02
    blocks = blocks_needed(claim, sd, ALPHA, margin=margin)
    assert blocks > blocks_needed(claim, sd, ALPHA)
    drawn = np.random.default_rng(3).normal(claim, sd, (300, blocks))
    hits = np.mean([row.mean() > margin and not _holds_zero(row) for row in drawn])
    assert hits == pytest.approx(POWER, abs=LOOSE)
    assert blocks_needed(margin, sd, ALPHA, margin=margin) is None
    assert boots_needed_unblocked(claim, sd, ALPHA, margin=margin) > boots_needed_unblocked(claim, sd, ALPHA)

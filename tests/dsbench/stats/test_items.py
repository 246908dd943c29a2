import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dsbench.stats.items import compare_items, mcnemar_p, tango_interval


def test_mcnemar_of_the_reference():
    assert mcnemar_p(9, 14) == pytest.approx(0.405, abs=0.005)  # measurement.md, section 10: p=.40
    assert mcnemar_p(0, 0) == 1.0


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_the_binomial_tail(gained, lost):
    n, k = gained + lost, min(gained, lost)
    assert mcnemar_p(gained, lost) == pytest.approx(min(1.0, 2 * binom.cdf(k, n, 0.5)))


@given(st.integers(1, 300), st.data())
def test_tango_solves_its_own_equation(n, data):
    """At each end the score statistic is z, with the null variance maximised by a grid, not by the formula."""
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    span = tango_interval(gained, lost, n, 0.90)
    estimate = (gained - lost) / n
    assert -1 <= span.low <= estimate + 1e-9
    assert estimate - 1e-9 <= span.high <= 1
    mirrored = tango_interval(lost, gained, n, 0.90)
    assert (-mirrored.high, -mirrored.low) == (pytest.approx(span.low, abs=1e-6), pytest.approx(span.high, abs=1e-6))
    for end in (span.low, span.high):
        if abs(end) < 0.999:
            z = abs(gained - lost - n * end) / math.sqrt(n * null_variance(gained, lost, n, end))
            assert z == pytest.approx(1.6449, abs=0.02)


def null_variance(gained, lost, n, delta):
    """Variance of one item's difference at the most likely discordance given p_gain - p_loss = delta."""
    loss = np.linspace(max(0.0, -delta), (1 - delta) / 2, 40_001)[1:-1]
    gain = loss + delta
    rest = 1 - loss - gain
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = gained * np.log(gain) + lost * np.log(loss) + (n - gained - lost) * np.log(rest)
    likelihood = np.where(np.isnan(likelihood), -np.inf, likelihood)
    best = int(np.argmax(likelihood))
    return gain[best] + loss[best] - delta**2


def test_no_flip_still_has_a_width():
    few, many = tango_interval(0, 0, 20, 0.90), tango_interval(0, 0, 2000, 0.90)
    assert few.high > 0.1
    assert 0 < many.high < 0.002


def test_tango_covers():
    rng = np.random.default_rng(1)
    p_gain, p_loss, n, runs = 0.03, 0.05, 200, 2000
    draws = rng.multinomial(n, [p_gain, p_loss, 1 - p_gain - p_loss], size=runs)
    spans = [tango_interval(int(g), int(x), n, 0.90) for g, x, _ in draws]
    covered = sum(s.low <= p_gain - p_loss <= s.high for s in spans) / runs
    assert covered > 0.88


def size_of_equivalence(n, margin, flips):
    """Exact chance that n items are called equivalent of which the margin is lost, when `flips` of them differ."""
    total = 0.0
    for k in range(int(binom.isf(1e-6, n, flips)) + 1):
        inside = [tango_interval(k - lost, lost, n, 0.90).inside(margin) for lost in range(k + 1)]
        total += binom.pmf(k, n, flips) * (inside @ binom.pmf(range(k + 1), k, (flips + margin) / 2 / flips))
    return total


def test_the_page_of_verdicts_says_how_far_the_score_interval_is_from_exact():
    """A score interval keeps its level on average, not at its worst: where all that flips is the loss itself."""
    worst = max(size_of_equivalence(n, margin, margin) for n, margin in ((268, 0.01), (134, 0.02), (135, 0.02)))
    assert 0.05 < worst < 0.07
    page = (Path(__file__).parents[3] / "docs/verdicts.md").read_text()
    assert f"of items in about 5 %, and up to {100 * worst:.1f} % where hardly any flips" in page
    assert size_of_equivalence(400, 0.02, 0.04) < 0.05


def test_pairs_are_made_by_item_not_by_order():
    a = {"x": 1, "y": 0, "z": 1}
    b = {"z": 1, "y": 1, "x": 1}
    paired = compare_items(a, b)
    assert (paired.gained, paired.lost, paired.items) == (1, 0, 3)
    assert paired.difference == pytest.approx(1 / 3)
    assert paired.test == "exact McNemar"


def test_items_of_one_cluster_count_once():
    """Ten flips in one scenario are one piece of evidence, ten in ten scenarios are ten."""
    a = {f"i{n}": 1.0 for n in range(10)} | {f"k{n}": 1.0 for n in range(10)}
    b = a | {f"i{n}": 0.0 for n in range(10)}
    alone = compare_items(a, b)
    together = compare_items(a, b, {f"i{n}": "one" for n in range(10)})
    assert alone.p == pytest.approx(2 / 2**10)
    assert (together.p, together.smallest_p) == (1.0, 1.0)
    assert together.test == "sign-flip over clusters"
    assert together.clusters == 11


def test_shares_over_boots_are_flipped_as_wholes():
    a = {f"i{n}": 0.5 for n in range(8)}
    b = {f"i{n}": 1.0 for n in range(8)}
    paired = compare_items(a, b)
    assert paired.p == pytest.approx(2 / 2**8)
    assert 0 <= paired.interval.low <= 0.5 <= paired.interval.high <= 1
    assert (paired.test, paired.clusters) == ("sign-flip over items", 8)
    assert compare_items(a, b, {"i0": "one", "i1": "one"}).test == "sign-flip over clusters"


@pytest.mark.parametrize(("a", "b"), [({}, {}), ({"x": 1}, {"y": 1}), ({"x": 1}, {"x": 1, "y": 1})])
def test_other_items_are_no_pairs(a, b):
    with pytest.raises(ValueError, match="same ones"):
        compare_items(a, b)


def test_by_simulation_an_aa_is_called_different_at_most_at_the_level():
    rng = np.random.default_rng(5)
    runs, items = 2000, 60
    alarms = 0
    for _ in range(runs):
        truth = rng.random(items) < 0.8
        a, b = (np.where(rng.random(items) < 0.05, ~truth, truth) for _ in range(2))
        alarms += mcnemar_p(int((~a & b).sum()), int((a & ~b).sum())) <= 0.05
    assert alarms / runs <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("n_clusters", [1, 5, 15, 400])
def test_clusters_in_which_nothing_flipped_say_no_more_than_as_many_items(n_clusters):
    items = {f"{cluster}/{i}": 1.0 for cluster in range(n_clusters) for i in range(9)}
    clusters = {item: item.partition("/")[0] for item in items}
    paired = compare_items(items, items, clusters)
    alone = tango_interval(0, 0, n_clusters, 0.90)
    assert paired.interval.low <= alone.low < 0 < alone.high <= paired.interval.high


def of_clusters(*lost):
    """Arms of clusters of which `(of, lost)` items: right in one, and so many of them lost in the other."""
    a = {f"{c}/{i}": 1.0 for c, (size, _) in enumerate(lost) for i in range(size)}
    b = {item: float(int(item.split("/")[1]) >= lost[int(item.split("/")[0])][1]) for item in a}
    return compare_items(a, b, {item: item.split("/")[0] for item in a})


def test_an_interval_of_clusters_of_unequal_size_stays_between_minus_1_and_1():
    """Single replies beside twelve that share one prompt, as the coherence probe asks them."""
    paired = of_clusters(*[(1, 1)] * 20, *[(12, 12)] * 4)
    assert (paired.difference, paired.interval.low) == (-1.0, -1.0)
    assert -1 <= paired.interval.high < -0.7


def test_one_item_of_five_is_a_fifth_of_a_lost_cluster():
    fifth, whole = of_clusters(*[(5, 1)] * 10, *[(5, 0)] * 20), of_clusters(*[(5, 5)] * 10, *[(5, 0)] * 20)
    assert -0.2 < fifth.interval.low < fifth.difference < fifth.interval.high <= 0
    assert whole.interval.low < -0.45
    assert fifth.p == whole.p < 0.01


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(-1, 1)), min_size=5, max_size=25))
def test_any_interval_of_clusters_holds_its_difference_and_no_more_than_can_be(clusters):
    a = {f"{c}/{i}": 0.5 for c, (size, _) in enumerate(clusters) for i in range(size)}
    b = {item: 0.5 + clusters[int(item.split("/")[0])][1] / 2 for item in a}
    paired = compare_items(a, b, {item: item.split("/")[0] for item in a})
    assert -1 <= paired.interval.low <= paired.difference + 1e-9
    assert paired.difference - 1e-9 <= paired.interval.high <= 1
    assert 0 <= paired.flipped <= 1 + 1e-9


SHAPES = {"equal": [5] * 15, "unequal": [3, 5, 5, 9, 9, 12, 12, 20], "replies": [1] * 11 + [12] * 3}


def lost_and_gained(rng, sizes, loss, gain, alike):
    """Score of every item in two arms; chances of a cluster are drawn around their means, the more `alike` the wider.
    Half of the items are right at first where anything can be gained, else all."""
    a, b, of = {}, {}, {}
    for c, size in enumerate(sizes):
        lose, win = (rng.beta(p * (1 / alike - 1), (1 - p) * (1 / alike - 1)) if p else 0.0 for p in (loss, gain))
        for i in range(size):
            item = f"{c}/{i}"
            of[item] = str(c)
            a[item] = float(not gain or rng.random() < 0.5)
            b[item] = float(rng.random() >= lose if a[item] else rng.random() < win)
    return compare_items(a, b, of)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("loss", "gain"), [(0.05, 0), (0.3, 0), (0.3, 0.3), (0.9, 0)])
@pytest.mark.parametrize("alike", [0.1, 0.8])
def test_intervals_of_clusters_cover_at_least_as_often_as_they_say(shape, loss, gain, alike):
    rng, runs = np.random.default_rng(11), 120
    truth = (gain - loss) / 2 if gain else -loss
    missed = 0
    for _ in range(runs):
        span = lost_and_gained(rng, SHAPES[shape], loss, gain, alike).interval
        missed += not span.low - 1e-9 <= truth <= span.high + 1e-9
    assert missed / runs <= 0.10 + 2.5 * math.sqrt(0.1 * 0.9 / runs)


def test_a_share_that_flips_in_clusters_widens_the_interval_as_before():
    scores = {f"{cluster}/{i}": 1.0 for cluster in range(40) for i in range(4)}
    fewer = {item: 0.0 if int(item.partition("/")[0]) < 12 else score for item, score in scores.items()}
    clusters = {item: item.partition("/")[0] for item in scores}
    paired = compare_items(scores, fewer, clusters)
    assert paired.difference == pytest.approx(-0.3)
    assert paired.interval.low < -0.3 < paired.interval.high < 0

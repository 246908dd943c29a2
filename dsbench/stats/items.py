"""Items that are right or wrong in both arms: exact McNemar, clusters, and the interval of the difference."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import stdev

from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from dsbench.stats.samples import Interval, ends, sign_flip_p, smallest_p, subset_means

MCNEMAR = "exact McNemar"


@dataclass(frozen=True)
class Paired:
    """What two arms did on the same items; scores are shares of boots in which the item was right."""

    items: int
    clusters: int
    gained: int
    """Items with a higher score in the candidate."""
    lost: int
    baseline: float
    candidate: float
    """Mean scores."""
    p: float
    smallest_p: float
    """Smallest p the test could give with this many discordant items or clusters."""
    interval: Interval
    """Of the difference of the mean scores."""
    test: str
    flipped: float = 0.0
    """Share of its items that a cluster gained or lost on balance, on average over the clusters."""
    spread: float | None = None
    """Standard deviation between clusters of what each adds to the mean difference; None with one cluster."""

    @property
    def difference(self) -> float:
        return self.candidate - self.baseline


def compare_items(
    baseline: Mapping[str, float],
    candidate: Mapping[str, float],
    clusters: Mapping[str, str] | None = None,
    confidence: float = 0.90,
) -> Paired:
    """Pair two arms' scores by item.

    With independent items scored 0 or 1 the test is exact McNemar and the interval Tango's score interval.
    Where items share a cluster, or have scores between 0 and 1, cluster sums are flipped as wholes; the interval is at
    least that of as many independent items as there are clusters, of which the shares are gained and lost that the
    clusters gained and lost. So it has a width when nothing flipped, and no need of how alike the items of a cluster
    are: what lies between -1 and 1 varies most where all of it is at the ends. It never leaves -1 to 1 where it ends,
    and holds where a change does not depend on the size of a cluster.
    Raises ValueError unless both arms have the same, non-empty items.
    """
    if not baseline or baseline.keys() != candidate.keys():
        raise ValueError("items can be paired only if both arms have the same ones, and at least one")
    n = len(baseline)
    differences = {item: candidate[item] - baseline[item] for item in baseline}
    gained = sum(d > 0 for d in differences.values())
    lost = sum(d < 0 for d in differences.values())
    sums: dict[str, float] = defaultdict(float)
    for item, difference in differences.items():
        sums[(clusters or {}).get(item, item)] += difference
    sizes = Counter((clusters or {}).get(item, item) for item in differences)
    scaled = [value * len(sums) / n for value in sums.values()]
    changes = [value / sizes[cluster] for cluster, value in sums.items()]
    up, down = (math.fsum(max(sign * change, 0.0) for change in changes) for sign in (1, -1))
    whole = all(score in (0, 1) for scores in (baseline, candidate) for score in scores.values())
    if len(sums) == n and whole:
        test, p, least = MCNEMAR, mcnemar_p(gained, lost), smallest_p(gained + lost)
        interval = tango_interval(gained, lost, n, confidence)
    else:
        moved = [value for value in sums.values() if value]
        test = f"sign-flip over {'clusters' if len(sums) < n else 'items'}"
        p, least = sign_flip_p(moved or [0.0]), smallest_p(len(moved))
        means = subset_means(changes, [sizes[cluster] for cluster in sums])
        interval = _joined(ends(means, confidence), tango_interval(up, down, len(sums), confidence))
    return Paired(
        items=n,
        clusters=len(sums),
        gained=gained,
        lost=lost,
        baseline=math.fsum(baseline.values()) / n,
        candidate=math.fsum(candidate.values()) / n,
        p=p,
        smallest_p=least,
        interval=interval,
        test=test,
        flipped=(up + down) / len(sums),
        spread=stdev(scaled) if len(scaled) > 1 else None,
    )


def _joined(flips: Interval, least: Interval) -> Interval:
    """Both together, up to 0 where the flips exclude the other side of it, so that p and interval say the same."""
    low = min(flips.low, max(least.low, 0.0) if flips.low > 0 else least.low)
    high = max(flips.high, min(least.high, 0.0) if flips.high < 0 else least.high)
    return Interval(low, high, flips.attained)


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided exact p that a discordant item is as likely gained as lost."""
    if gained + lost == 0:
        return 1.0
    return float(binomtest(gained, gained + lost, 0.5).pvalue)


def tango_interval(gained: float, lost: float, n: float, confidence: float) -> Interval:
    """Score interval of the paired difference (gained - lost) / n (Tango 1998); counts need not be whole.

    Unlike an interval from the discordant items alone it has a width when nothing flipped.
    """
    z = float(norm.isf((1.0 - confidence) / 2.0))
    estimate = (gained - lost) / n

    def score(delta: float) -> float:
        a = 2.0 * n
        b = -gained - lost + (2.0 * n - gained + lost) * delta
        c = -lost * delta * (1.0 - delta)
        q = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
        variance = n * (2.0 * q + delta * (1.0 - delta))
        return (gained - lost - n * delta) / math.sqrt(variance) if variance > 0 else 0.0

    edge = 1.0 - 1e-12
    low = -1.0 if score(-edge) < z else float(brentq(lambda d: score(d) - z, -edge, estimate - 1e-15))
    high = 1.0 if score(edge) > -z else float(brentq(lambda d: score(d) + z, estimate + 1e-15, edge))
    return Interval(low, high, confidence)

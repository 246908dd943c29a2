"""Two proportions of which only the totals were kept: z test, Fisher's exact test, and the score interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from scipy.stats import fisher_exact, norm

from dsbench.stats.power import POWER
from dsbench.stats.samples import Interval


@dataclass(frozen=True)
class TwoProportions:
    """`difference`, `interval` and the errors are shares, second arm minus first."""

    n_a: int
    n_b: int
    difference: float
    z_pooled: float
    z_unpooled: float
    p_z: float
    """Of the pooled z, two-sided; Fisher's p decides."""
    fisher_p: float
    stderr_single: float
    """Binomial standard error of one run, at the pooled share and the smaller arm."""
    interval: Interval

    def visible(self, alpha: float, margin: float = 0.0, power: float = POWER) -> float:
        """Smallest difference that is seen, and beyond the margin, with this power; by normal approximation."""
        error = self._spread * sqrt(1 / self.n_a + 1 / self.n_b)
        return max(float(norm.isf(alpha / 2)) * error, margin) + float(norm.isf(1 - power)) * error

    def items_needed(self, effect: float, alpha: float, margin: float = 0.0, power: float = POWER) -> int | None:
        """Items an arm, all independent, that so see `effect`; None if it is none, or not beyond the margin."""
        if abs(effect) <= margin:
            return None
        z, spare = float(norm.isf(alpha / 2)), float(norm.isf(1 - power))
        return ceil(2.0 * (max((z + spare) / abs(effect), spare / (abs(effect) - margin)) * self._spread) ** 2)

    def items_equivalent(self, margin: float, confidence: float, power: float = POWER) -> int | None:
        """Items an arm that call equal arms equivalent within the margin; None without one."""
        if not margin:
            return None
        reach = float(norm.isf((1 - confidence) / 2) + norm.isf((1 - power) / 2))
        return ceil(2.0 * (reach * self._spread / margin) ** 2)

    @property
    def _spread(self) -> float:
        """Standard deviation of one item."""
        return self.stderr_single * sqrt(min(self.n_a, self.n_b))


def compare_proportions(right_a: int, n_a: int, right_b: int, n_b: int, confidence: float = 0.90) -> TwoProportions:
    """Compare totals of independent items. ValueError unless 0 <= right <= n and n > 0 in both arms."""
    if not (0 <= right_a <= n_a and 0 <= right_b <= n_b and n_a and n_b):
        raise ValueError(f"a share needs items: got {right_a} of {n_a} and {right_b} of {n_b}")
    a, b = right_a / n_a, right_b / n_b
    pooled = (right_a + right_b) / (n_a + n_b)
    z = _ratio(b - a, sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b)))
    return TwoProportions(
        n_a=n_a,
        n_b=n_b,
        difference=b - a,
        z_pooled=z,
        z_unpooled=_ratio(b - a, sqrt(a * (1 - a) / n_a + b * (1 - b) / n_b)),
        p_z=float(2 * norm.sf(abs(z))),
        fisher_p=float(fisher_exact([[right_a, n_a - right_a], [right_b, n_b - right_b]]).pvalue),
        stderr_single=sqrt(pooled * (1 - pooled) / min(n_a, n_b)),
        interval=newcombe(right_a, n_a, right_b, n_b, confidence),
    )


def newcombe(right_a: int, n_a: int, right_b: int, n_b: int, confidence: float) -> Interval:
    """Newcombe's hybrid score interval of the difference, from the Wilson interval of each share."""
    a, b = right_a / n_a, right_b / n_b
    (low_a, high_a), (low_b, high_b) = wilson(right_a, n_a, confidence), wilson(right_b, n_b, confidence)
    low = (b - a) - sqrt((b - low_b) ** 2 + (high_a - a) ** 2)
    high = (b - a) + sqrt((high_b - b) ** 2 + (a - low_a) ** 2)
    return Interval(low, high, confidence)


def wilson(right: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of one share."""
    z = float(norm.isf((1 - confidence) / 2))
    share, weight = right / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / weight
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / weight
    return max(0.0, centre - half), min(1.0, centre + half)


def _ratio(difference: float, error: float) -> float:
    return difference / error if error else 0.0

"""Whether tokens follow a known law: Pearson's chi-square over the positions of an output.

The tokens of one position come from several contexts (the tokens before), each with its own law. A frequent
token of a frequent context is a cell of its own; what is rarer is pooled over the contexts by token, and what
is still rarer is one cell. Given the contexts the counts are a sum of multinomials, which varies no more than
one multinomial with the same expectations, so `cells - 1` degrees of freedom are conservative; positions add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import binom, chi2

EXPECTED_AT_LEAST = 5.0
"""Expected count of a cell; what is rarer is pooled."""

Cell = tuple[int, float]
"""Observed and expected count."""


@dataclass(frozen=True)
class Context:
    """Tokens that followed one and the same beginning."""

    observed: Mapping[str, int]
    law: Mapping[str, float]
    """Probabilities of the likeliest tokens; what is missing from 1 falls to the others."""

    @property
    def n(self) -> int:
        return sum(self.observed.values())


@dataclass(frozen=True)
class LawTest:
    """One prompt's tokens against their law."""

    n: int
    """Tokens compared."""
    statistic: float
    degrees: int
    p: float
    """1 where nothing could be compared: see `degrees`."""
    total_variation: float
    """Half the sum over the cells of the differences of shares; under the law not 0 but about sqrt(cells / n)."""


def compare_law(positions: Sequence[Sequence[Context]]) -> LawTest:
    """Chi-square of one prompt, summed over the positions of its output; each position is a list of contexts."""
    statistic, distance, degrees, n = 0.0, 0.0, 0, 0
    for contexts in positions:
        size = sum(context.n for context in contexts)
        if size:
            found = cells(contexts)
            value, free = _statistic(found, size)
            statistic, degrees, n = statistic + value, degrees + free, n + size
            distance += sum(abs(seen - expected) for seen, expected in found) / 2
    p = float(chi2.sf(statistic, degrees)) if degrees else 1.0
    return LawTest(n, statistic, degrees, p, distance / n if n else 0.0)


def together(tests: Sequence[LawTest]) -> LawTest:
    """Several prompts as one: what is a little off everywhere adds up."""
    statistic, degrees = sum(test.statistic for test in tests), sum(test.degrees for test in tests)
    n = sum(test.n for test in tests)
    distance = sum(test.total_variation * test.n for test in tests)
    p = float(chi2.sf(statistic, degrees)) if degrees else 1.0
    return LawTest(n, statistic, degrees, p, distance / n if n else 0.0)


def cells(contexts: Sequence[Context]) -> list[Cell]:
    """The cells of one position, chosen by what is expected only; the last one holds the rest."""
    kept: list[Cell] = []
    pooled: dict[str, Cell] = defaultdict(lambda: (0, 0.0))
    for context in contexts:
        for token, probability in context.law.items():
            cell = context.observed.get(token, 0), context.n * probability
            if cell[1] >= EXPECTED_AT_LEAST:
                kept.append(cell)
            else:
                pooled[token] = pooled[token][0] + cell[0], pooled[token][1] + cell[1]
    kept += [cell for cell in pooled.values() if cell[1] >= EXPECTED_AT_LEAST]
    kept.sort(key=lambda cell: -cell[1])
    n = sum(context.n for context in contexts)
    return [*kept, (n - sum(seen for seen, _ in kept), max(n - sum(expected for _, expected in kept), 0.0))]


def _statistic(found: Sequence[Cell], n: int) -> tuple[float, int]:
    """Chi-square of one position and its degrees of freedom.

    A rest too small for a cell is tested by its binomial tail, which bounds that of a sum over contexts
    (Hoeffding 1956), and the other cells given its count: so a token that cannot be is seen.
    """
    *kept, (rest, expected_rest) = found
    if not kept or expected_rest >= EXPECTED_AT_LEAST:
        return sum((seen - expected) ** 2 / expected for seen, expected in found), len(kept)
    tail = float(chi2.isf(binom.sf(rest - 1, n, expected_rest / n), 1))
    scale = (n - rest) / (n - expected_rest)
    if not scale:
        return tail, 1
    return tail + sum((seen - scale * e) ** 2 / (scale * e) for seen, e in kept), max(len(kept), 1)

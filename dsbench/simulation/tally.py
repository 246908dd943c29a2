"""What simulated experiments came to: counts that add up, and shares with their own intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from dsbench.records import Word

CONFIDENCE = 0.95
"""Of the Clopper-Pearson intervals of the simulation's own shares."""


@dataclass(frozen=True)
class Outcome:
    """One simulated comparison of one metric."""

    word: Word
    rejected: bool
    """Whether the row's own test rejects, margin or not."""
    covered: bool | None
    """Whether the printed interval holds the truth; None where none was printed."""
    attained: float | None = None
    """Confidence the interval says it has."""
    right: bool = False
    """Whether the word is the planted effect's."""
    t_over_requests: bool | None = None
    """Whether Welch's t test over requests rejects; None where there are no requests."""
    u_over_requests: bool | None = None
    """Whether the usual test over requests does: Mann-Whitney, of drafts a test of two shares, of items McNemar."""
    blamed: tuple[str, ...] = ()
    """Of a whole experiment: the rows that say regressed, and reasons for void."""


@dataclass(frozen=True)
class Tally:
    """Sums over experiments of one case; two of them add up."""

    experiments: int = 0
    improved: int = 0
    regressed: int = 0
    equivalent: int = 0
    inconclusive: int = 0
    void: int = 0
    rejected: int = 0
    right: int = 0
    intervals: int = 0
    covered: int = 0
    attained: float = 0.0
    """Sum over the intervals."""
    of_t: int = 0
    of_u: int = 0
    """Experiments with requests to test."""
    t_rejected: int = 0
    u_rejected: int = 0
    blamed: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def claims(self) -> int:
        """Experiments that said improved or regressed."""
        return self.improved + self.regressed


def tally(outcomes: Iterable[Outcome]) -> Tally:
    """Count outcomes; `not-run` counts as void."""
    total = Tally()
    for o in outcomes:
        word = "void" if o.word == "not-run" else o.word
        total += Tally(
            experiments=1,
            **{word: 1},
            rejected=o.rejected,
            right=o.right,
            intervals=o.covered is not None,
            covered=bool(o.covered),
            attained=o.attained or 0.0,
            of_t=o.t_over_requests is not None,
            of_u=o.u_over_requests is not None,
            t_rejected=bool(o.t_over_requests),
            u_rejected=bool(o.u_over_requests),
            blamed=Counter(o.blamed),
        )
    return total


def share(hits: int, n: int) -> tuple[float, float, float] | None:
    """A share and its Clopper-Pearson interval; None of nothing."""
    from scipy.stats import binomtest

    if not n:
        return None
    found = binomtest(hits, n).proportion_ci(CONFIDENCE, method="exact")
    return hits / n, float(found.low), float(found.high)

"""How drafts fared: acceptance metrics from counters, and the rates of synthetic acceptance (torch-free).

A round verifies the drafts of one request once. Source: deepseek_v4_dspark.md sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


class AcceptanceError(ValueError):
    """Rates, a length or counters that cannot be; the message names the value and the mend."""


@dataclass(frozen=True)
class AcceptanceCounts:
    """Counters over rounds with at least one draft; the difference of two readings is again counts."""

    drafts: int
    """Rounds."""
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    """[k]: rounds that accepted more than k drafts."""

    @classmethod
    def zero(cls, k: int) -> AcceptanceCounts:
        """Before the first round, for up to k drafts a round."""
        return cls(0, 0, 0, (0,) * k)

    def after(self, n_drafted: int, n_accepted: int) -> AcceptanceCounts:
        """With one more round; a round without drafts changes nothing."""
        k = len(self.accepted_per_position)
        if not 0 <= n_accepted <= n_drafted <= k:
            raise AcceptanceError(
                f"a round accepted {n_accepted} of {n_drafted} drafts; need 0 <= accepted <= drafted <= {k}"
            )
        if not n_drafted:
            return self
        per_position = tuple(n + (i < n_accepted) for i, n in enumerate(self.accepted_per_position))
        return AcceptanceCounts(self.drafts + 1, self.drafted + n_drafted, self.accepted + n_accepted, per_position)

    def since(self, earlier: AcceptanceCounts) -> AcceptanceCounts:
        """What was counted between two readings of one server."""
        if len(self.accepted_per_position) != len(earlier.accepted_per_position):
            raise AcceptanceError(
                f"readings have {len(earlier.accepted_per_position)} and {len(self.accepted_per_position)} positions; "
                "compare readings of one server"
            )
        differences = [now - then for now, then in zip(self._flat(), earlier._flat(), strict=True)]
        if min(differences) < 0:
            raise AcceptanceError(f"a counter fell by {-min(differences)} between readings; read one server run twice")
        drafts, drafted, accepted, *per_position = differences
        return AcceptanceCounts(drafts, drafted, accepted, tuple(per_position))

    def _flat(self) -> tuple[int, ...]:
        return (self.drafts, self.drafted, self.accepted, *self.accepted_per_position)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of drafted; None before any draft."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a round emits, bonus included; None before any round."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def survival(self) -> tuple[float, ...] | None:
        """a_k: share of rounds that accepted draft k and all before it; None before any round."""
        return tuple(n / self.drafts for n in self.accepted_per_position) if self.drafts else None

    @property
    def conditional(self) -> tuple[float | None, ...] | None:
        """c_k = a_k / a_(k-1): share accepted of the rounds that got to draft k; None at a position none got to.

        Rounds with fewer drafts count as rounds that did not accept.
        """
        if not self.drafts:
            return None
        reached = (self.drafts, *self.accepted_per_position)
        return tuple(n / before if before else None for before, n in pairwise(reached))


def conditional_from_survival(survival: Sequence[float]) -> tuple[float, ...]:
    """Rates c_k for the synthetic test u_k < c_k, from the asked rates a_k of all rounds; 0/0 is 0.

    Raises AcceptanceError unless 1 >= a_0 >= a_1 >= ... >= 0.
    """
    before = 1.0
    rates = []
    for k, rate in enumerate(survival):
        if not 0 <= rate <= 1:
            raise AcceptanceError(f"synthetic acceptance rate {rate:g} of position {k} is not in 0..1; give a share")
        if rate > before:
            raise AcceptanceError(
                f"synthetic acceptance rates increase at position {k}, from {before:g} to {rate:g}; "
                "each is a share of all rounds, so give rates that do not increase"
            )
        rates.append(rate / before if before else 0.0)
        before = rate
    return tuple(rates)


def survival_from_length(length: float, k: int) -> tuple[float, ...]:
    """Rates a_k of a synthetic length with k drafts: ones, then the fraction, then zeros (not a decay).

    3.341 with 5 drafts gives 1, 1, 0.341, 0, 0. Raises AcceptanceError unless 1 <= length <= k + 1.
    """
    if not 1 <= length <= k + 1:
        raise AcceptanceError(f"synthetic acceptance length {length:g} is not in 1..{k + 1} ({k} drafts and a bonus)")
    return tuple(min(1.0, max(0.0, length - 1 - i)) for i in range(k))


def synthetic_conditional_rates(
    k: int, rates: Sequence[float] | None = None, length: float | None = None
) -> tuple[float, ...]:
    """The k conditional rates of synthetic acceptance, from either the rates of all rounds or a length."""
    if (rates is None) == (length is None):
        raise AcceptanceError("synthetic acceptance needs either rates or a length; give one of them")
    if rates is None:
        assert length is not None
        rates = survival_from_length(length, k)
    if len(rates) != k:
        raise AcceptanceError(f"synthetic acceptance has {len(rates)} rates for {k} drafts; give {k}")
    return conditional_from_survival(rates)

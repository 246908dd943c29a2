"""What a verdict row is about, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsbench.claims import level_alone
from dsbench.decide import direction
from dsbench.metrics import Metric
from dsbench.policy import LARGEST
from dsbench.records import Arm, Plan, Verdict, Word
from dsbench.stats.power import blocks_equivalent, blocks_needed, boots_equivalent_unblocked, boots_needed_unblocked

Numbers = Sequence[float]


@dataclass(frozen=True)
class Comparison:
    """What a row is about; every kind starts from this."""

    plan: Plan
    arm: Arm
    metric: Metric
    rank: int | None
    role: str

    def row(self, word: Word, **fields: Any) -> Verdict:
        base = fields.get("baseline") or 0.0
        return Verdict.model_validate(
            {
                "arm": self.arm.name,
                "metric": self.metric.key,
                "unit": self.metric.unit,
                "better": self.metric.better,
                "rank": self.rank,
                "role": self.role,
                "kind": self.metric.kind,
                "margin": self.margin(base),
                "margin_absolute": self.metric.absolute or (self._in_unit is not None and not base),
                "expected": self.arm.expected.get(self.metric.key),
                "word": word,
                **fields,
            }
        )

    def margin(self, base: float) -> float:
        """Smallest change that matters, in the metric's own terms; where those are a fraction of a baseline of 0, and a
        policy says it in the unit, in the unit."""
        if self._in_unit is None:
            return self.metric.margin
        return min(self._in_unit / abs(base), LARGEST) if base else self._in_unit

    def margin_in_unit(self, base: float) -> float:
        """The same in the unit, whatever the metric's own terms are."""
        if self._in_unit is not None:
            return self._in_unit
        return self.metric.margin if self.metric.absolute else self.metric.margin * abs(base)

    @property
    def _in_unit(self) -> float | None:
        """A margin that the policy gives in the unit, whatever a baseline reads."""
        given = self.plan.policy.margin_of(self.metric.key) if self.plan.policy else None
        return given.value if given and given.of == "unit" and not self.metric.absolute else None

    @property
    def level(self) -> float:
        """What the p of a lone change has to reach, so that its claim stands among the others of its family."""
        return level_alone(self.plan, self.arm, self.role)

    def direction(self, change: float) -> Word:
        return direction(change, self.metric.better)

    def claimed(self, base: float) -> float | None:
        """The change that the registry expects, as a fraction of the baseline; None if it expects none."""
        expected = self.arm.expected.get(self.metric.key)
        return abs(expected / base) if expected and base else None

    def needs_of_blocks(self, sd: float, margin: float, change: float, seen: float) -> dict[str, Any]:
        """Blocks that an answer takes, as fields of a row with `needed_effect` in the terms given.

        They are those that see the `change` that is claimed; where that is within the margin, or 0, those that call
        equal arms equivalent; without a margin those that see what was `seen`.
        """
        plan = self.plan
        if margin and change <= margin:
            needed = blocks_equivalent(margin, sd, plan.equivalence_confidence)
            return {"needed_for": "equivalence", "blocks_needed": needed, "needed_effect": margin}
        target = change or seen
        needed = blocks_needed(target, sd, self.level, margin=margin)
        return {"blocks_needed": needed, "needed_effect": target or None}

    def needs_of_boots(self, sd: float, margin: float, change: float, seen: float) -> dict[str, Any]:
        """The same in boots an arm without blocks, `sd` being their spread."""
        plan, unit = self.plan, {"needed_unit": "boots an arm"}
        if margin and change <= margin:
            needed = boots_equivalent_unblocked(margin, sd, plan.equivalence_confidence)
            return {**unit, "needed_for": "equivalence", "blocks_needed": needed, "needed_effect": margin}
        target = change or seen
        needed = boots_needed_unblocked(target, sd, self.level, margin=margin)
        return {**unit, "blocks_needed": needed, "needed_effect": target or None}


def merged(of_ranks: Sequence[Verdict]) -> list[Verdict]:
    """The rows of one metric and arm, one a rank; where all ranks read alike they are one row without a rank."""
    alike = {row.model_copy(update={"rank": None}).model_dump_json() for row in of_ranks}
    return [of_ranks[0].model_copy(update={"rank": None})] if len(alike) == 1 else list(of_ranks)

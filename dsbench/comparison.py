"""What a verdict row is about, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsbench.decide import direction
from dsbench.metrics import Metric
from dsbench.records import Arm, Plan, Verdict, Word

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
        return Verdict.model_validate(
            {
                "arm": self.arm.name,
                "metric": self.metric.key,
                "unit": self.metric.unit,
                "better": self.metric.better,
                "rank": self.rank,
                "role": self.role,
                "kind": self.metric.kind,
                "margin": self.metric.margin,
                "margin_absolute": self.metric.absolute,
                "expected": self.arm.expected.get(self.metric.key),
                "word": word,
                **fields,
            }
        )

    def direction(self, change: float) -> Word:
        return direction(change, self.metric.better)

    def claimed(self, base: float) -> float | None:
        """The change that the registry expects, as a fraction of the baseline; None if it expects none."""
        expected = self.arm.expected.get(self.metric.key)
        return abs(expected / base) if expected and base else None


def merged(of_ranks: Sequence[Verdict]) -> list[Verdict]:
    """The rows of one metric and arm, one a rank; where all ranks read alike they are one row without a rank."""
    alike = {row.model_copy(update={"rank": None}).model_dump_json() for row in of_ranks}
    return [of_ranks[0].model_copy(update={"rank": None})] if len(alike) == 1 else list(of_ranks)

"""One figure an arm and metric, from the boots of a result: what stands beside other results, or in a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from dsbench.evidence import BootEvidence
from dsbench.records import Observation, Plan


@dataclass(frozen=True)
class Measured:
    """One arm's figure of one metric."""

    value: float
    unit: str
    boots: int
    how: str
    """`median of 2 boots`, `1,319 items in 2 boots`."""


def by_arm(plan: Plan, boots: Sequence[BootEvidence], key: str) -> dict[str, Measured]:
    """Each arm's figure; of several ranks the smallest, as an engine serves what its smallest rank can."""
    metrics = {metric.key: metric for metric in plan.metrics}
    if key not in metrics:
        return {}
    kind = metrics[key].kind
    unit = "share" if kind == "item" else metrics[key].unit
    found: dict[str, Measured] = {}
    for arm in plan.arms:
        seen = [boot.readings[key] for boot in boots if boot.planned.arm == arm.name and boot.readings.get(key)]
        measured = figure(seen, kind, unit)
        if measured is not None:
            found[arm.name] = measured
    return found


def figure(boots: Sequence[Sequence[Observation]], kind: str, unit: str) -> Measured | None:
    """One number for the boots of an arm; None where the platform did not know."""
    n = len(boots)
    plural = f"{n} boot{'' if n == 1 else 's'}"
    if kind == "item":
        values = [float(o.value) for seen in boots for o in seen if isinstance(o.value, int | float)]
        items = {o.item for seen in boots for o in seen}
        return Measured(fmean(values), unit, n, f"{len(items):,} items in {plural}") if values else None
    if kind == "counter-ratio":
        counts = [o.raw for seen in boots for o in seen if o.raw is not None and len(o.raw) == 2]
        above, below = sum(raw[0] for raw in counts), sum(raw[1] for raw in counts)
        return Measured(above / below, unit, n, f"all counts of {plural}") if below else None
    smallest = []
    for seen in boots:
        values = [float(o.value) for o in seen if isinstance(o.value, int | float)]
        if values and len(values) == len(seen):  # a rank that does not know may be the smallest
            smallest.append(min(values))
    plural = f"{len(smallest)} boot{'' if len(smallest) == 1 else 's'}"
    return Measured(median(smallest), unit, len(smallest), f"median of {plural}") if smallest else None

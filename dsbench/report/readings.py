"""What the charts of a report show, from the boots: figures by boot, by load and by draft position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from dsbench.evidence import BootEvidence
from dsbench.metrics import Metric
from dsbench.records import ExperimentVerdict, Observation, Plan

SHOWN_ARMS = 5
"""Arms that one chart tells apart, the baseline included."""

_LOAD = re.compile(r"(.+)\.(c?)(\d+)")
_POSITION = re.compile(r"(.+) k(\d+)")
_FIRST_SHOWN = {"regressed": 0, "improved": 1, "void": 2, "inconclusive": 3}


@dataclass(frozen=True)
class BootPoint:
    boot: int
    block: int | None
    arm: str
    warm_up: bool
    value: float


@dataclass(frozen=True)
class BootSeries:
    """One metric, one value a boot, in the order of time."""

    metric: str
    unit: str
    points: list[BootPoint]


@dataclass(frozen=True)
class Spread:
    """Median over the boots of an arm, with the least and the greatest; over boots pooled, all three are one value."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class Curves:
    """One metric over some steps, such as numbers of streams, for each arm."""

    title: str
    unit: str
    axis: str
    steps: list[int]
    arms: dict[str, list[Spread | None]]


def shown_arms(plan: Plan, verdict: ExperimentVerdict, most: int = SHOWN_ARMS) -> list[str]:
    """The baseline and the arms that have most to tell, in the plan's order."""
    words = {arm.arm: arm.word for arm in verdict.arms}
    candidates = [arm.name for arm in plan.arms[1:]]
    by_news = sorted(candidates, key=lambda name: _FIRST_SHOWN.get(words.get(name, ""), 9))[: most - 1]
    return [plan.baseline.name, *(name for name in candidates if name in by_news)]


def measured(boots: Sequence[BootEvidence], arm: str | None = None) -> list[BootEvidence]:
    """Boots that count, of one arm or of all."""
    return [boot for boot in boots if boot.ok and boot.planned.phase == "measured" and arm in (None, boot.planned.arm)]


def value_of(metric: Metric, readings: Sequence[Observation]) -> float | None:
    """One figure a boot: the reading, the share of items that are right, or the ratio of the pooled counts."""
    if metric.kind == "counter-ratio":
        counts = [o.raw for o in readings if o.raw and len(o.raw) == 2]
        below = sum(count[1] for count in counts)
        return sum(count[0] for count in counts) / below if below else None
    numbers = [o.value for o in readings if isinstance(o.value, int | float)]
    if not numbers or len(numbers) != len(readings):
        return None
    return fmean(numbers) if metric.kind == "item" else float(numbers[0])


def by_boot(plan: Plan, boots: Sequence[BootEvidence], first: Sequence[str]) -> tuple[list[BootSeries], list[str]]:
    """Metrics that vary from boot to boot, those named `first` before the others; and the keys of all that do not.

    A metric that every boot of an arm repeats has nothing to show in order of time.
    """
    series, steady = [], []
    for metric in sorted(plan.metrics, key=lambda m: m.key not in first):
        for rank in sorted({o.rank for b in boots for o in b.readings.get(metric.key, [])}, key=str):
            points = _points(boots, metric, rank)
            name = metric.key if not rank else f"{metric.key} rank {rank}"
            if any(len({p.value for p in points if p.arm == arm}) > 1 for arm in {p.arm for p in points}):
                series.append(BootSeries(name, metric.unit, points))
            elif points:
                steady.append(name)
    return series, steady


def _points(boots: Sequence[BootEvidence], metric: Metric, rank: int | None) -> list[BootPoint]:
    points = []
    for boot in boots:
        read = [o for o in boot.readings.get(metric.key, []) if o.rank == rank]
        if boot.ok and (value := value_of(metric, read)) is not None:
            planned = boot.planned
            points.append(BootPoint(boot.number, planned.block, planned.arm, planned.phase == "warm-up", value))
    return points


def by_load(plan: Plan, boots: Sequence[BootEvidence], arms: Sequence[str]) -> list[Curves]:
    """Families of metrics read at two or more loads: numbers of streams, or lengths of the prompt."""
    families: dict[tuple[str, str], list[tuple[int, Metric]]] = {}
    for metric in plan.metrics:
        if found := _LOAD.fullmatch(metric.key):
            families.setdefault((found[1], found[2]), []).append((int(found[3]), metric))
    curves = []
    for (name, letter), members in families.items():
        members.sort(key=lambda member: member[0])
        values = {arm: [_spread(boots, arm, metric) for _, metric in members] for arm in arms}
        values = {arm: spreads for arm, spreads in values.items() if any(spreads)}
        if len(members) > 1 and values:
            axis = "requests at one time" if letter else "prompt tokens"
            curves.append(Curves(name, members[0][1].unit, axis, [step for step, _ in members], values))
    return curves


def by_position(plan: Plan, boots: Sequence[BootEvidence], arms: Sequence[str]) -> list[Curves]:
    """Acceptance by draft position, from 1, one chart a kind of text; counts of all boots of an arm are pooled."""
    counts: dict[str, dict[str, dict[int, list[float]]]] = {}
    for arm in arms:
        for boot in measured(boots, arm):
            for o in boot.readings.get("accept.per_position", []):
                found = _POSITION.fullmatch(o.item or "")
                if found and o.raw and len(o.raw) == 2:
                    pooled = counts.setdefault(found[1], {}).setdefault(arm, {}).setdefault(int(found[2]), [0.0, 0.0])
                    pooled[0] += o.raw[0]
                    pooled[1] += o.raw[1]
    curves = []
    for text, by_arm in counts.items():
        steps = sorted({k for pooled in by_arm.values() for k in pooled})
        shares = {arm: [_share(pooled.get(k)) for k in steps] for arm, pooled in by_arm.items()}
        curves.append(Curves(text, "share", "draft position", [k + 1 for k in steps], shares))
    return curves


def _share(counts: list[float] | None) -> Spread | None:
    return Spread(*[counts[0] / counts[1]] * 3) if counts and counts[1] else None


def _spread(boots: Sequence[BootEvidence], arm: str, metric: Metric) -> Spread | None:
    read = [value_of(metric, boot.readings.get(metric.key, [])) for boot in measured(boots, arm)]
    values = [value for value in read if value is not None]
    return Spread(min(values), median(values), max(values)) if values else None

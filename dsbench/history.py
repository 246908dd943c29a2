"""One metric over stored results: comparable ones in order of time, why others were left out, and change points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from dsbench.arm_figures import figure
from dsbench.comparable import apart, conditions_of, differing, settings_apart
from dsbench.errors import InputError
from dsbench.evidence import BootEvidence, gather
from dsbench.judge import judge
from dsbench.metrics import Metric
from dsbench.records import Arm, Plan
from dsbench.stats.change_points import FEWEST, exact_changes, noisy_changes
from dsbench.store import load_records, load_verdict, plans_under

NO_LIBRARY = "no change points were looked for: pip install 'dsbench-dspark[history]' brings ruptures"


@dataclass(frozen=True)
class Point:
    """The metric in one result."""

    id: str
    created: str
    value: float
    low: float
    high: float
    """Smallest and largest boot."""
    boots: int
    how: str
    arms: list[str]
    """Those of the result that are of the build and toggles asked for."""
    changed: dict[str, list[str]]
    """Conditions and versions that are not those of the point before it: before, now."""


@dataclass(frozen=True)
class ChangePoint:
    """A level that differs from the one before it."""

    id: str
    """First result of the new level."""
    place: int
    before: float
    after: float
    """Medians of the levels."""
    changed: dict[str, list[str]]
    """Conditions that changed together with it."""

    @property
    def relative(self) -> float | None:
        return self.after / self.before - 1 if self.before else None


@dataclass(frozen=True)
class History:
    """Everything that is printed."""

    metric: str
    unit: str
    better: str
    arm: str
    """Of the reference, with its toggles."""
    reference: str
    """The result that the others had to be like."""
    points: list[Point]
    left_out: dict[str, str]
    """Why, by result."""
    change_points: list[ChangePoint]
    notes: list[str]


def history(key: str, out: Path, *, arm: str | None = None, like: str | None = None) -> History:
    """The metric in all results under `out` that are comparable with the newest that has it, or with `like`.

    Arms are found by build and toggles, not by name: the baseline of every experiment of a build is one. Other seeds
    count, as a history claims nothing and nightly runs change theirs; that the seed changed is told as a condition is.
    InputError if no result has the metric, or if the reference has no such arm.
    """
    entries, notices = plans_under(out)
    plan, of = _reference(key, entries, out, arm, like)
    metric = plan.metric(key)
    points: list[Point] = []
    left_out: dict[str, str] = {}
    before: dict[str, object] | None = None
    for folder, other in reversed(entries):
        arms = [theirs for theirs in other.arms if not apart(plan, of, other, theirs, one_seed=False)]
        if why := _unlike(key, plan, of, other, arms):
            left_out[other.id] = why
            continue
        boots, why = _boots(folder, other, arms)
        point = None if why else _point(metric, other, arms, boots)
        if point is None:
            left_out[other.id] = why or "no boot has a figure of it"
            continue
        read = conditions_of(other, boots, arms[0].name) | {"seed": other.seed}
        changed = {} if before is None else differing(before, read)
        points.append(Point(**{**point.__dict__, "changed": changed}))
        before = dict(read)
    changes, notes = _change_points(metric, points)
    ranks = "" if metric.kind in ("item", "counter-ratio") else "; of several ranks the smallest"
    return History(
        metric=key,
        unit="share" if metric.kind == "item" else metric.unit,
        better=metric.better,
        arm=of.name + (f" ({of.environment})" if of.environment else ""),
        reference=plan.id,
        points=points,
        left_out=left_out,
        change_points=changes,
        notes=[*notices, *notes, f"a figure is the {_kind_of_figure(metric)}{ranks}"],
    )


def _reference(
    key: str, entries: Sequence[tuple[Path, Plan]], out: Path, arm: str | None, like: str | None
) -> tuple[Plan, Arm]:
    having = [plan for _, plan in entries if any(metric.key == key for metric in plan.metrics)]
    if like is not None:
        having = [plan for plan in having if like in plan.id]
    if not having:
        more = f" whose id has '{like}'" if like is not None else ""
        raise InputError(f"no result under {out}{more} has {key}: give the folder of results with --out")
    # Without its machine a result compares with none.
    for plan in sorted(having, key=lambda plan: plan.fingerprint is None):
        found = next((entry for entry in plan.arms if arm in (None, entry.name)), None)
        if found is not None:
            return plan, found
    raise InputError(f"--arm {arm}: {having[0].id} has {', '.join(entry.name for entry in having[0].arms)}")


def _unlike(key: str, plan: Plan, arm: Arm, other: Plan, arms: Sequence[Arm]) -> str:
    """Why a result's plan does not compare; '' where it does."""
    if not any(metric.key == key for metric in other.metrics):
        return f"its plan has no {key}"
    if not arms:
        # Its nearest arm is the one with the fewest reasons.
        each = (apart(plan, arm, other, theirs, one_seed=False) for theirs in other.arms)
        fewest: list[str] = min(each, key=_length)
        return "; ".join(fewest)
    return settings_apart(plan, other, key)


def _length(said: list[str]) -> int:
    return len(said)


def _boots(folder: Path, plan: Plan, arms: Sequence[Arm]) -> tuple[list[BootEvidence], str]:
    """Measured boots of these arms that ended well, or why none counts."""
    try:
        records = load_records(folder)[0]
    except InputError as error:
        return [], str(error)
    try:
        verdict = load_verdict(folder)
    except InputError:
        verdict = None
    verdict = verdict or judge(plan, records)
    if verdict.word == "void":
        return [], f"it is void ({verdict.void[0].code})" if verdict.void else "it is void"
    names = {arm.name for arm in arms}
    boots = gather(plan, records)
    return [boot for boot in boots if boot.ok and boot.planned.phase == "measured" and boot.planned.arm in names], ""


def _point(metric: Metric, plan: Plan, arms: Sequence[Arm], boots: Sequence[BootEvidence]) -> Point | None:
    seen = [boot.readings[metric.key] for boot in boots if boot.readings.get(metric.key)]
    unit = "share" if metric.kind == "item" else metric.unit
    together = figure(seen, metric.kind, unit)
    each = [one.value for readings in seen if (one := figure([readings], metric.kind, unit)) is not None]
    if together is None:
        return None
    return Point(
        id=plan.id,
        created=plan.created,
        value=together.value,
        low=min(each),
        high=max(each),
        boots=together.boots,
        how=together.how,
        arms=[arm.name for arm in arms],
        changed={},
    )


def _change_points(metric: Metric, points: Sequence[Point]) -> tuple[list[ChangePoint], list[str]]:
    values = [point.value for point in points]
    steady = all(point.low == point.high for point in points)
    if metric.kind == "exact" and steady:
        places, notes = exact_changes(values), ["compared exactly: every other value is a change"]
    else:
        try:
            places, notes = noisy_changes(values), []
        except ImportError:
            return [], [NO_LIBRARY]
        if len(values) < FEWEST:
            notes = [f"change points need {FEWEST} comparable results, here are {len(values)}"]
        else:
            notes = ["a change point is a place to look at, no verdict: the results ran at different times"]
    bounds = [0, *places, len(values)]
    levels = [median(values[a:b]) for a, b in pairwise(bounds)] if values else []
    return [
        ChangePoint(points[place].id, place, levels[i], levels[i + 1], points[place].changed)
        for i, place in enumerate(places)
    ], notes


def _kind_of_figure(metric: Metric) -> str:
    if metric.kind == "item":
        return "share of all items in all boots"
    return "ratio of all counts" if metric.kind == "counter-ratio" else "median of the boots"

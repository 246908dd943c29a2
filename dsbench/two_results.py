"""Two stored results side by side: figures, conditions that differ, and differences that time cannot explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dsbench.arm_figures import Measured, by_arm
from dsbench.claims import corrected
from dsbench.comparable import apart, conditions_of, differing, settings_apart
from dsbench.compare import compare
from dsbench.comparison import merged
from dsbench.evidence import BootEvidence, gather
from dsbench.judge import judge
from dsbench.records import Arm, Plan, Verdict
from dsbench.store import Result

AT_OTHER_TIMES = (
    "ran at another time than {other}: no verdict by the clock; run both in one experiment (dsbench ab --a-python, "
    "--b-python, or one --arm each)"
)


@dataclass(frozen=True)
class Figures:
    """One metric in every arm of both results."""

    metric: str
    unit: str
    first: dict[str, Measured]
    second: dict[str, Measured]
    """By arm."""


@dataclass(frozen=True)
class Pair:
    """An arm of the first result and one of the second."""

    first: str
    second: str
    apart: list[str]
    """Why they are not comparable; then there are no rows."""
    rows: list[Verdict]
    """The second against the first."""
    left_out: dict[str, str]
    """Metrics of both that are not the same measurement, and why."""


@dataclass(frozen=True)
class TwoResults:
    """Everything that is printed."""

    figures: list[Figures]
    pairs: list[Pair]
    unpaired: list[str]
    """Arms that only one of them has, as `RESULT: ARM`."""
    conditions: dict[str, list[str]]
    """Those that differ between the baselines: of the first, of the second."""


def compare_results(first: Result, second: Result) -> TwoResults:
    """Nothing is pooled. Arms are paired by name, others by what they are made of."""
    boots = [_usable(result) for result in (first, second)]
    keys = dict.fromkeys(metric.key for result in (first, second) for metric in result.plan.metrics)
    units = {metric.key: metric.unit for result in (first, second) for metric in result.plan.metrics}
    figures = [
        Figures(key, units[key], by_arm(first.plan, boots[0], key), by_arm(second.plan, boots[1], key)) for key in keys
    ]
    pairs = [pair_of(first, arm, second, other) for arm, other in _paired(first.plan, second.plan)]
    named = ({pair.first for pair in pairs}, {pair.second for pair in pairs})
    read = [
        conditions_of(result.plan, seen, result.plan.baseline.name)
        for result, seen in zip((first, second), boots, strict=True)
    ]
    return TwoResults(
        figures=[entry for entry in figures if entry.first or entry.second],
        pairs=pairs,
        unpaired=[
            f"{result.plan.id}: {arm.name}"
            for result, known in zip((first, second), named, strict=True)
            for arm in result.plan.arms
            if arm.name not in known
        ],
        conditions=differing(*read),
    )


def pair_of(first: Result, arm: Arm, second: Result, other: Arm) -> Pair:
    """Judge an arm of the second result against one of the first, where they are comparable.

    Boots of two results share no block, so samples are compared as two groups, and are never resolved: what changed
    on the machine in between cannot be told from what changed in the build. The other rows' words have to stand among
    their families, as in an experiment.
    """
    said = apart(second.plan, other, first.plan, arm)
    said += [f"{result.plan.id} is void" for result in (first, second) if _void(result)]
    if said:
        return Pair(arm.name, other.name, said, [], {})
    plan, boots = _joined(first, arm, second, other)
    rows: list[Verdict] = []
    left_out: dict[str, str] = {}
    shared = {metric.key for metric in first.plan.metrics}
    for metric in [metric for metric in second.plan.metrics if metric.key in shared]:
        if why := settings_apart(first.plan, second.plan, metric.key):
            left_out[metric.key] = why
            continue
        # Counts of a block depend on its seeds, which both results share; clock readings have no block in common.
        seen = boots if metric.kind == "counter-ratio" else [_without_block(boot) for boot in boots]
        ranks = {o.rank for boot in boots for o in boot.readings.get(metric.key, ())}
        role = _role(second.plan, metric.key)
        rows += merged(
            [
                _across_time(compare(plan, seen, plan.arms[1], metric, rank, role), first.plan.id)
                for rank in sorted(ranks or {None}, key=lambda rank: -1 if rank is None else rank)
            ]
        )
    # What is read by the clock claims nothing here, and so takes nothing from the others' level.
    tested = iter(corrected(plan, [row for row in rows if not by_the_clock(row)]))
    return Pair(arm.name, other.name, [], [row if by_the_clock(row) else next(tested) for row in rows], left_out)


def by_the_clock(row: Verdict) -> bool:
    """Whether a row of two results is a sample, which time alone may have moved."""
    return row.kind == "sample"


def _across_time(row: Verdict, other: str) -> Verdict:
    if not by_the_clock(row):
        return row
    notes = [*row.notes, AT_OTHER_TIMES.format(other=other)]
    word = "inconclusive" if row.word in ("improved", "regressed", "equivalent") else row.word
    return row.model_copy(update={"word": word, "notes": notes})


def _joined(first: Result, arm: Arm, second: Result, other: Arm) -> tuple[Plan, list[BootEvidence]]:
    """A plan of two arms, and the boots of both under numbers of their own."""
    names = (f"{arm.name} of {first.plan.id}", arm.name if arm.name == other.name else f"{arm.name} -> {other.name}")
    base = arm.model_copy(update={"name": names[0], "expected": {}})
    candidate = other.model_copy(update={"name": names[1], "expected": {}})
    boots: list[BootEvidence] = []
    for result, of, name in ((first, arm, names[0]), (second, other, names[1])):
        for boot in _usable(result):
            if boot.planned.arm == of.name:
                planned = boot.planned.model_copy(update={"number": len(boots) + 1, "arm": name})
                boots.append(replace(boot, planned=planned))
    plan = second.plan.model_copy(update={"arms": [base, candidate], "reused_from": None, "floors": [], "looks": []})
    return plan, boots


def _without_block(boot: BootEvidence) -> BootEvidence:
    return replace(boot, planned=boot.planned.model_copy(update={"block": None}))


def _usable(result: Result) -> list[BootEvidence]:
    boots = gather(result.plan, result.records)
    return [boot for boot in boots if boot.ok and boot.planned.phase == "measured"]


@lru_cache(maxsize=4)
def _void(result: Result) -> bool:
    return judge(result.plan, result.records).word == "void"


def _role(plan: Plan, key: str) -> str:
    """The same for every arm. No row of two results is a drift control: it is the build that may have moved it."""
    if any(key in arm.primary for arm in plan.arms):
        return "primary"
    return "guard" if key in plan.guards else "shown"


def _paired(first: Plan, second: Plan) -> list[tuple[Arm, Arm]]:
    """By name; then what is left, by what it is made of."""
    names = {arm.name for arm in second.arms}
    pairs = [(arm, second.arm(arm.name)) for arm in first.arms if arm.name in names]
    left: Sequence[Arm] = [arm for arm in first.arms if arm.name not in names]
    free = [arm for arm in second.arms if arm.name not in {other.name for _, other in pairs}]
    for arm in left:
        like = next((other for other in free if not apart(first, arm, second, other)), None)
        if like is not None:
            pairs.append((arm, like))
            free.remove(like)
    return pairs

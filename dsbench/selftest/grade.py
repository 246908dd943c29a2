"""What the judge says of each planted defect, from stored records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsbench.judge import judge
from dsbench.records import KvProfile, Observation, Plan, Record, Run, Word
from dsbench.selftest.plants import CLEAN, PLANTS, Group, Plant
from dsbench.store import load_plan, load_records

HARMLESS: tuple[Word, ...] = ("equivalent", "inconclusive")
"""What an arm in which nothing is planted may be called."""


@dataclass(frozen=True)
class Graded:
    """One arm: what was planted, what the judge had to say, and what it said."""

    planted: str
    what: str
    expected: str
    given: str
    caught: bool


def grade(folders: dict[Group, Path]) -> list[Graded]:
    """Judge each arm of each group against its baseline alone, as if nothing else had been run."""
    rows: list[Graded] = []
    for group, folder in folders.items():
        plan, records = load_plan(folder), load_records(folder)[0]
        names = [arm.name for arm in plan.arms[1:]]
        rows += [_graded(plant, plan, records) for plant in PLANTS if plant.name in names]
        rows.append(_clean(group, plan, records))
    return rows


def _graded(plant: Plant, plan: Plan, records: Sequence[Record]) -> Graded:
    alone, of_arm = _only(plan, records, plant.name)
    if plant.in_records:
        of_arm = IN_RECORDS[plant.name](alone, of_arm)
    verdict = judge(alone, of_arm)
    regressed = sorted({row.metric for row in verdict.rows if row.word == "regressed"})
    signs = sorted({reason.code for reason in verdict.void}) or regressed
    return Graded(
        planted=plant.name,
        what=plant.what,
        expected=f"{plant.word}: {plant.sign}",
        given=f"{verdict.word}: {', '.join(signs)}" if signs else verdict.word,
        caught=verdict.word == plant.word and plant.sign in signs,
    )


def _clean(group: Group, plan: Plan, records: Sequence[Record]) -> Graded:
    verdict = judge(*_only(plan, records, CLEAN))
    signs = [reason.code for reason in verdict.void] or [row.metric for row in verdict.rows if row.word == "regressed"]
    return Graded(
        planted=f"nothing ({group})",
        what="the same engine twice",
        expected=" or ".join(HARMLESS),
        given=f"{verdict.word}: {', '.join(signs)}" if signs else verdict.word,
        caught=verdict.word in HARMLESS,
    )


def _only(plan: Plan, records: Sequence[Record], arm: str) -> tuple[Plan, list[Record]]:
    """The experiment as if it had been run with the baseline and this arm alone."""
    names = {plan.baseline.name, arm}
    boots = [boot for boot in plan.boots if boot.arm in names]
    numbers = {boot.number for boot in boots}
    alone = plan.model_copy(update={"arms": [plan.baseline, plan.arm(arm)], "boots": boots})
    return alone, [record for record in records if isinstance(record, Run) or record.boot in numbers]


def _read_twice(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Clock readings of the arm's second boot are those of its first."""
    first, second = (boot.number for boot in plan.boots if boot.arm == "read-twice")
    clocks = {metric.key for metric in plan.metrics if metric.clock}

    def reads(record: Record, boot: int) -> bool:
        return isinstance(record, Observation) and record.metric in clocks and record.boot == boot

    copied = [record.model_copy(update={"boot": second}) for record in records if reads(record, first)]
    return [*(record for record in records if not reads(record, second)), *copied]


def _profile_rewritten(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """The arm's profiles say a MiB more than what was observed."""

    def more(record: Record) -> Record:
        if not isinstance(record, KvProfile) or record.boot not in numbers:
            return record
        available = record.values["available_bytes"] + (1 << 20)
        return record.model_copy(update={"values": {**record.values, "available_bytes": available}})

    numbers = {boot.number for boot in plan.boots if boot.arm == "profile-rewritten"}
    return [more(record) for record in records]


IN_RECORDS = {"read-twice": _read_twice, "profile-rewritten": _profile_rewritten}

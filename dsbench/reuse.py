"""Baseline boots of an earlier experiment in place of new ones: marked, and never compared by the clock.

What time cannot change (bytes, tokens, answers, drafts) is judged as if they had run beside the candidates. Clock
readings are not: what changed on the machine between the two runs cannot be told from what the toggle did.
"""

from __future__ import annotations

from pathlib import Path

from dsbench.comparable import VERSIONS, apart
from dsbench.errors import InputError
from dsbench.evidence import gather
from dsbench.records import Plan, PlannedBoot, Record, Run, Verdict
from dsbench.store import RecordWriter, load_plan, load_records, load_verdict

ACROSS_TIME = "baseline boots of {result}, taken at another time: no verdict by the clock; run without --reuse-baseline"


def with_baseline_of(plan: Plan, folder: Path) -> Plan:
    """The plan with its baseline's measured boots taken from the result in `folder`, and no warm-ups of that arm.

    InputError if they are not boots of this machine, build, seed and suite, or too few.
    """
    other = load_plan(folder)
    if differs := _differences(plan, other):
        raise InputError(f"--reuse-baseline {folder}: {differs[0]}; its boots are not this baseline's")
    verdict = load_verdict(folder)
    if verdict is None or verdict.word == "void":
        state = "was not judged" if verdict is None else "is void"
        raise InputError(f"--reuse-baseline {folder}: that result {state}, so its boots prove nothing")
    blocks = _baseline_boots(other, load_records(folder)[0])
    boots: list[PlannedBoot] = []
    for boot in plan.boots:
        if boot.arm != plan.baseline.name:
            boots.append(boot)
        elif boot.phase == "measured":
            if boot.block not in blocks:
                raise InputError(
                    f"--reuse-baseline {folder}: it has {len(blocks)} baseline boots, the plan needs {plan.blocks}: "
                    f"add --blocks {len(blocks)}"
                )
            boots.append(boot.model_copy(update={"reused": blocks[boot.block]}))
    note = f"baseline boots: {plan.blocks} of {other.id}, created {other.created}; none runs now"
    return plan.model_copy(update={"boots": boots, "reused_from": other.id, "notes": [*plan.notes, note]})


def copy_records(plan: Plan, source: Path, folder: Path) -> None:
    """Append the records of the reused boots to the new result, under their new numbers."""
    number_of = {boot.reused: boot.number for boot in plan.boots if boot.reused is not None}
    records = load_records(source)[0]
    last = {record.boot: record.attempt for record in records if not isinstance(record, Run)}
    with RecordWriter(folder) as writer:
        writer.write_all(
            record.model_copy(update={"boot": number_of[record.boot], "attempt": 1})
            for record in records
            if not isinstance(record, Run) and record.boot in number_of and record.attempt == last[record.boot]
        )


def across_time(plan: Plan, row: Verdict) -> Verdict:
    """A row of clock readings or other samples: not resolved where the baseline ran at another time."""
    if plan.reused_from is None or row.word not in ("improved", "regressed", "equivalent"):
        return row
    notes = [*row.notes, ACROSS_TIME.format(result=plan.reused_from)]
    return row.model_copy(update={"word": "inconclusive", "notes": notes})


def _differences(plan: Plan, other: Plan) -> list[str]:
    """Why boots of another plan's baseline are not this one's, in words."""
    said = apart(plan, plan.baseline, other, other.baseline)
    if plan.fingerprint and other.fingerprint:
        changes = other.fingerprint.changes(plan.fingerprint)
        said += [f"other versions ({change})" for change in changes if change.partition(" ")[0] in VERSIONS]
    if plan.probes != other.probes:
        said.append(f"its probes are not those of suite '{plan.suite}'")
    return said


def _baseline_boots(other: Plan, records: list[Record]) -> dict[int | None, int]:
    """Numbers of the measured baseline boots that ended well, by block."""
    return {
        boot.planned.block: boot.number
        for boot in gather(other, records)
        if boot.ok and boot.planned.arm == other.baseline.name and boot.planned.phase == "measured"
    }

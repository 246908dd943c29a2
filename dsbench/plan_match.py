"""Records belong to one plan: what runs and boots tell of it is held against plan.json before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsbench.errors import InputError
from dsbench.plan_nouns import Plan, PlannedBoot
from dsbench.records import BootStarted, Record, Run

MEND = "they are not of one experiment, or one was changed; take both from a copy, or run anew"


def check_match(plan: Plan, digest: str, records: Sequence[Record], where: Path) -> list[str]:
    """Notices of what cannot be told. InputError names the first boot, or run, that was not of this plan.

    `digest` is that of the stored plan, `where` the file of the records.
    """
    planned = {boot.number: boot for boot in plan.boots}
    runs = [record for record in records if type(record) is Run]
    for record in records:
        if type(record) is BootStarted:
            _check_boot(record, planned.get(record.boot), where)
    for run in runs:
        if run.plan_sha256 not in ("", digest):
            raise InputError(
                f"{where}: its run of {run.time} was of a plan with digest {run.plan_sha256[:12]}, plan.json has "
                f"{digest[:12]}: {MEND}"
            )
    untold = sum(not run.plan_sha256 for run in runs)
    if not untold:
        return []
    which = "its runs do" if untold == len(runs) else f"{untold} of its {len(runs)} runs do"
    told = "not tell the digest of their plan (an older dsbench wrote them)"
    return [f"{where}: {which} {told}: that it was changed is noticed by the arm, block and phase of boots alone"]


def _check_boot(started: BootStarted, planned: PlannedBoot | None, where: Path) -> None:
    """A boot taken from an earlier experiment keeps the name that its arm had there."""
    if planned is None:
        raise InputError(
            f"{where}: boot {started.boot} ran arm {started.arm!r}, plan.json has no boot {started.boot}: {MEND}"
        )
    for key in ("arm", "block", "phase"):
        ran, due = getattr(started, key), getattr(planned, key)
        if ran != due and not (key == "arm" and planned.reused is not None):
            raise InputError(f"{where}: boot {started.boot} ran with {key} {ran!r}, plan.json says {due!r}: {MEND}")

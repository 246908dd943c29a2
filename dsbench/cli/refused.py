"""What a command that is refused in the middle of its run leaves: nothing, or all that was measured and the way on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from dsbench.errors import InputError, ResultsLost

if TYPE_CHECKING:
    from dsbench.records import Record


@contextmanager
def nothing_left_if_refused(folder: Path, resume: str, judge: str, kept: bool = False) -> Iterator[None]:
    """An InputError takes a result along in which nothing was measured, unless it was there before (`kept`).

    Otherwise the result stays, and the line ends with the command that goes on, to which the folder is added:
    `resume` as long as boots are left, `judge` after the last one.
    """
    try:
        yield
    except InputError as error:
        if kept or _removed(folder):
            raise
        command = resume if _boots_left(folder) else judge
        raise InputError(f"{error}; what was measured is kept, go on with: {command} {quote(str(folder))}") from None


def _removed(folder: Path) -> bool:
    """Remove a result in which nothing was measured. It stays if another dsbench writes it, or it cannot be read."""
    from dsbench.records import Run
    from dsbench.store import RecordWriter, load_plan, load_records

    try:
        elsewhere = {boot.number for boot in load_plan(folder).boots if boot.reused is not None}
        with RecordWriter(folder):
            for record in load_records(folder)[0]:
                if not isinstance(record, Run) and record.boot not in elsewhere and _tells(record):
                    return False
            shutil.rmtree(folder)
    except (InputError, ResultsLost):
        return False
    return True


def _tells(record: Record) -> bool:
    """Whether a record is worth keeping: a reading, or the end of a boot that was neither refused nor interrupted."""
    from dsbench.execute import REFUSED
    from dsbench.records import BootEnded, Observation

    if isinstance(record, BootEnded):
        return record.status == "ok" or (record.status == "failed" and REFUSED not in record.reason)
    return isinstance(record, Observation)


def _boots_left(folder: Path) -> bool:
    from dsbench.killed import to_repeat
    from dsbench.records import BootEnded
    from dsbench.store import load_plan, load_records

    try:
        plan, records = load_plan(folder), load_records(folder)[0]
    except InputError:
        return True
    last = {record.boot: record for record in records if isinstance(record, BootEnded)}
    left = {boot.number for boot in plan.boots if boot.number not in last or last[boot.number].status == "interrupted"}
    return bool(left or to_repeat(plan, records))

"""Every arm of a result against the newest comparable one that is stored elsewhere, of the main branch say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsbench.comparable import apart
from dsbench.errors import InputError
from dsbench.records import Arm, Plan, Verdict
from dsbench.store import Result, plans_under
from dsbench.two_results import Pair, pair_of


@dataclass(frozen=True)
class Against:
    """Rows whose baseline is a stored arm."""

    rows: list[Verdict] = field(default_factory=list)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why there is no row, by arm and metric; the metric is `*` for an arm without a comparable one."""


def against(result: Result, folder: Path) -> Against:
    """Compare as `dsbench compare` does. InputError if the folder holds no result but this one."""
    stored = [entry for entry in plans_under(folder)[0] if entry[1].id != result.plan.id]
    if not stored:
        raise InputError(f"--baseline {folder}: no stored result is there; keep those of the main branch in it")
    found = Against()
    for arm in result.plan.arms:
        pair, why = _newest(result, arm, stored)
        if pair is None:
            found.left_out[arm.name, "*"] = why
        else:
            found.rows.extend(row.model_copy(update={"arm": arm.name}) for row in pair.rows)
            found.left_out.update({(arm.name, metric): text for metric, text in pair.left_out.items()})
    return found


def _newest(result: Result, arm: Arm, stored: Sequence[tuple[Path, Plan]]) -> tuple[Pair | None, str]:
    """The first stored arm that compares; else why that of the newest result does not."""
    why = ""
    for folder, plan in stored:
        for other in plan.arms:
            said = apart(result.plan, arm, plan, other)
            if not said:
                pair = pair_of(Result(folder), other, result, arm)
                if pair.rows:
                    return pair, ""
                said = pair.apart or ["no metric is the same measurement"]
            why = why or f"{plan.id} {other.name}: {said[0]}"
    return None, why

"""Claims of improvement: all but the primaries are corrected together, by Holm (rule 4)."""

from __future__ import annotations

from collections.abc import Sequence

from dsbench.decide import direction
from dsbench.records import Plan, Verdict
from dsbench.stats.holm import holm


def corrected(plan: Plan, rows: Sequence[Verdict]) -> list[Verdict]:
    """The same rows; an improvement that does not stand among all claims becomes inconclusive.

    Every tested row could have claimed one, so every one counts, with p = 1 where it moved the other way. The
    primary of an arm with one toggle, or of a build, was declared beforehand and is not corrected; that of an arm
    with several toggles, such as a step of a ladder, is a further claim. A loss is never corrected away.
    """
    family = [index for index, row in enumerate(rows) if row.p is not None and not _declared(plan, row)]
    adjusted = holm([_claim(rows[index]) for index in family])
    result = list(rows)
    for index, p in zip(family, adjusted, strict=True):
        row = rows[index]
        if row.word != "improved":
            continue
        update: dict[str, object] = {"p_holm": p}
        if p > plan.alpha:
            note = f"p={row.p:.2g} alone; among {len(family)} claims of improvement p={p:.2g} (Holm)"
            update |= {"word": "inconclusive", "notes": [*row.notes, note]}
        result[index] = row.model_copy(update=update)
    return result


def _declared(plan: Plan, row: Verdict) -> bool:
    if row.role == "drift control":
        return True
    return row.role == "primary" and len(plan.arm(row.arm).toggles) <= 1


def _claim(row: Verdict) -> float:
    """p of the claim that the candidate is better."""
    better = row.delta is not None and direction(row.delta, row.better) == "improved"
    return row.p if better and row.p is not None else 1.0

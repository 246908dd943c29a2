"""Many tests in one experiment: which claims of improvement and of loss stand among them, by Holm (rule 4)."""

from __future__ import annotations

from collections.abc import Sequence

from dsbench.decide import direction
from dsbench.metrics import Metric
from dsbench.records import Arm, Plan, Verdict, Word
from dsbench.stats.holm import holm
from dsbench.stats.power import boots_to_fire
from dsbench.stats.samples import blocks_to_fire

GUARDS = 0.8
"""Share of alpha that an arm's guards may spend on losses: what is left pays for guards that have no p here."""
EXACT = 1e-12
"""Products of exact p values that are equal to alpha are not above it by rounding."""


def corrected(plan: Plan, rows: Sequence[Verdict]) -> list[Verdict]:
    """The same rows; an improvement or a loss that does not stand among its family becomes inconclusive.

    Improvements: all tested rows but the declared primaries are one family. The primary of an arm with one toggle,
    or of a build, was declared beforehand and is not corrected; that of an arm with several toggles, such as a step
    of a ladder, is a further claim.

    Losses: an arm's primaries are one family and its guards another, so that a lone primary keeps its own p. A
    two-sided test errs towards a loss half of the time: at 5 % the primaries call equal arms regressed in at most
    2.5 % of experiments, the guards in at most 2 %, and output_law, which fails a sound boot once in a thousand, in
    1.2 % at 12 blocks. Rows that are compared for equality have no p, belong to no family and keep their word.
    """
    result = list(rows)
    claims = [i for i, row in enumerate(rows) if row.p is not None and not _declared(plan, row)]
    _withdraw(result, claims, "improved", plan.alpha, "claims of improvement")
    for arm in plan.arms[1:]:
        for role, what, share in (("primary", "tested primaries", 1.0), ("guard", "tested guards", GUARDS)):
            family = [i for i, row in enumerate(rows) if (row.arm, row.role) == (arm.name, role) and row.p is not None]
            _withdraw(result, family, "regressed", share * plan.alpha, f"{what} of this arm")
    return result


def is_unproven_gain(row: Verdict) -> bool:
    """Whether a row is inconclusive only because its improvement does not stand: it is still no loss."""
    return row.word == "inconclusive" and row.p_holm is not None and _moved(row) == "improved"


def level_alone(plan: Plan, arm: Arm, role: str) -> float:
    """Level that the p of a change has to reach where nothing else of its family changed: what a row could have seen,
    and needs, is told at this one.

    Families are counted as they were planned, one row a metric: a metric is tested if it is a sample, a ratio, or
    items with a margin. That of a guard is its losses, that of all others the improvements.
    """
    if role == "guard":
        mine = sum(_tested(one) for one in plan.metrics if one.key in plan.guards and one.key not in arm.primary)
        return GUARDS * plan.alpha / max(mine, 1)
    if _declared_role(role, arm):
        return plan.alpha
    tested = [one.key for one in plan.metrics if _tested(one) and one.key not in plan.drift_controls]
    claims = sum(key not in other.primary or len(other.toggles) > 1 for other in plan.arms[1:] for key in tested)
    return plan.alpha / max(claims, 1)


def _tested(metric: Metric) -> bool:
    return metric.kind in ("sample", "counter-ratio") or (metric.kind == "item" and metric.margin > 0)


def _withdraw(rows: list[Verdict], family: Sequence[int], word: Word, level: float, what: str) -> None:
    """Make those rows of a family inconclusive whose `word` does not stand. Every test could have claimed it, so
    every one counts, with p = 1 where it moved the other way."""
    adjusted = holm([rows[i].p or 0.0 if _moved(rows[i]) == word else 1.0 for i in family])
    for i, p in zip(family, adjusted, strict=True):
        row = rows[i]
        if row.word != word:
            continue
        update: dict[str, object] = {"p_holm": p}
        if p > level + EXACT:
            note = f"p={row.p:.2g} alone; among {len(family)} {what} p={p:.2g} (Holm), above {level:.2g}"
            takes, figures = _out_of_reach(row, level / len(family))
            update |= {"word": "inconclusive", "notes": [*row.notes, note + takes], **figures}
        rows[i] = row.model_copy(update=update)


def _out_of_reach(row: Verdict, level: float) -> tuple[str, dict[str, object]]:
    """Where a sample's test could not have reached the level of a family's smallest p: what it takes, as a note and
    as figures of the row. What it could see alone is then no help."""
    if row.kind != "sample" or row.smallest_p is None or row.smallest_p <= level + EXACT:
        return "", {}
    enough = blocks_to_fire(level) if row.blocks else boots_to_fire(level)
    now, then = (f"{row.blocks} blocks", f"{enough} blocks") if row.blocks else (
        f"{row.n_baseline}+{row.n_candidate} boots", f"{enough} boots an arm")  # fmt: skip
    return (
        f"; at {now} none can stand among so many, at {then} one can",
        {
            "smallest_effect": None,
            "blocks_needed": enough,
            "needed_for": "claim",
            "needed_effect": None,
            "needed_unit": "blocks" if row.blocks else "boots an arm",
        },
    )


def _declared(plan: Plan, row: Verdict) -> bool:
    return _declared_role(row.role, plan.arm(row.arm))


def _declared_role(role: str, arm: Arm) -> bool:
    return role == "drift control" or (role == "primary" and len(arm.toggles) <= 1)


def _moved(row: Verdict) -> Word | None:
    return None if row.delta is None else direction(row.delta, row.better)

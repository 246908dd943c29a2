"""Looks of an experiment that may stop early: which part of the plan counts, and at which level it is judged."""

from __future__ import annotations

from collections.abc import Sequence

from dsbench.records import BootEnded, Look, Plan, Record
from dsbench.stats.sequential import alpha_at, choose_looks


def plan_looks(most: int, alpha: float, equivalence_confidence: float) -> list[Look]:
    """Looks at up to `most` blocks; empty if no test could fire with so few.

    Improved and regressed spend `alpha` over the looks, equivalent spends its own one-sided error.
    """
    one_sided = (1 - equivalence_confidence) / 2
    blocks = choose_looks(most, alpha)
    return [
        Look(
            blocks=n,
            alpha=alpha_at(i, blocks, alpha),
            equivalence_confidence=1 - 2 * alpha_at(i, blocks, one_sided, sides=1),
        )
        for i, n in enumerate(blocks, start=1)
    ]


def at_look(plan: Plan, number: int) -> Plan:
    """The plan as if it ended at a look, from 1: its boots, its level, its confidence."""
    look = plan.looks[number - 1]
    note = (
        f"look {number} of {len(plan.looks)}, at {look.blocks} of {plan.blocks} blocks: tested at {look.alpha:.4f} so "
        f"that all looks together err in at most {plan.alpha:.0%} (O'Brien-Fleming-type spending)"
    )
    return plan.model_copy(
        update={
            "boots": [boot for boot in plan.boots if boot.block is None or boot.block <= look.blocks],
            "blocks": look.blocks,
            "alpha": look.alpha,
            "equivalence_confidence": look.equivalence_confidence,
            "looks": [],
            "notes": [*plan.notes, note],
        }
    )


def looks_reached(plan: Plan, records: Sequence[Record]) -> int:
    """How many looks have all their boots; an interrupted boot is none."""
    if not plan.looks:
        return 0
    last = {(record.boot, record.attempt): record.status for record in records if isinstance(record, BootEnded)}
    ended = {boot for (boot, _), status in last.items() if status != "interrupted"}
    owed = [{boot.number for boot in at_look(plan, n).boots} for n in range(1, len(plan.looks) + 1)]
    return sum(boots <= ended for boots in owed)


def as_reached(plan: Plan, records: Sequence[Record]) -> Plan:
    """What the judge looks at: the plan at the last look that was reached, or as it is where there are no looks."""
    reached = looks_reached(plan, records)
    return at_look(plan, reached) if reached else plan

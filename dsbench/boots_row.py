"""The verdict row of items whose boots are not one another's repeat: then the boot is the unit, not the item.

An item's p rests on answers that flip one by one. Where the boots of one arm differ by more than that (a recall test
read 22, 6 and 23 of 24 in three boots of one build), many items say what one boot had, and are no replicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from dsbench.comparison import Comparison
from dsbench.records import Observation, Verdict
from dsbench.sample_row import over_blocks, over_boots
from dsbench.stats.power import REPEAT_LEVEL
from dsbench.stats.repeats import repeat_p
from dsbench.stats.unblocked import PERMUTATION

Answers = Mapping[str, Mapping[int, float]]
"""Scores by item and boot."""
Observed = Mapping[int, list[Observation]]


def compare_boots(
    this: Comparison, baseline: Observed, candidate: Observed, blocks: Mapping[int, int | None], notes: list[str]
) -> Verdict | None:
    """Mean scores of boots, paired in blocks or permuted; None where the boots of each arm may be repeats."""
    a, b = _answers(baseline), _answers(candidate)
    items = [item for item in a if item in b and len(a[item]) == len(baseline) and len(b[item]) == len(candidate)]
    several = [seen for seen in (baseline, candidate) if len(seen) > 1]
    apart = [
        _apart(name, {item: of_arm[item] for item in items}, p)
        for name, seen, of_arm in ((this.plan.baseline.name, baseline, a), (this.arm.name, candidate, b))
        if (p := repeat_p(_sums(of_arm, items, seen))) <= REPEAT_LEVEL / max(len(several), 1)
    ]
    if not apart or not items:
        return None
    of_a, of_b = ({boot: fmean(of_arm[item][boot] for item in items) for boot in seen}
                  for seen, of_arm in ((baseline, a), (candidate, b)))  # fmt: skip
    fields, cannot = _compared(this, of_a, of_b, blocks)
    return this.row(
        **fields,
        n_baseline=len(items),
        n_candidate=len(items),
        interval_of="difference",
        notes=[*notes, *apart, *cannot],
    )


def _apart(arm: str, answers: Answers, p: float) -> str:
    moved = sum(len(set(scores.values())) > 1 for scores in answers.values())
    return (
        f"boots of {arm} differ by {moved} of {len(answers)} items: not one another's repeat (p={p:.2g}), so the boot "
        "is the unit"
    )


def _compared(
    this: Comparison, a: Mapping[int, float], b: Mapping[int, float], blocks: Mapping[int, int | None]
) -> tuple[dict[str, Any], list[str]]:
    """Fields of the row from the mean score of every boot, and a note where the test could not have fired."""
    margin = this.metric.margin
    of_a, of_b = ({blocks[n]: score for n, score in arm.items() if blocks[n] is not None} for arm in (a, b))
    if common := [block for block in of_a if block in of_b]:
        base = fmean(of_a[block] for block in common)
        told = over_blocks(this, [of_b[block] - of_a[block] for block in common], margin)
    else:
        base, told = fmean(a.values()), over_boots(this, [*a.values()], [*b.values()], margin, declared=PERMUTATION)
    fields = {
        **told.fields(this, margin),
        "baseline": base,
        "candidate": base + told.effect,
        "delta": told.effect,
        "test": f"{told.test}, mean score of a boot",
    }
    return fields | (told.power if fields["word"] != "equivalent" else {}), told.notes


def _answers(observed: Observed) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for boot, seen in observed.items():
        for o in seen:
            if isinstance(o.value, int | float):
                found.setdefault(o.item or "", {})[boot] = float(o.value)
    return found


def _sums(answers: Answers, items: list[str], observed: Observed) -> list[list[float]]:
    """[clusters, boots] of one arm: items that share a cluster stand or fall together."""
    clusters = {o.item or "": o.cluster for seen in observed.values() for o in seen if o.cluster is not None}
    sums: dict[str, list[float]] = {}
    for item in items:
        row = sums.setdefault(clusters.get(item, item), [0.0] * len(observed))
        for i, boot in enumerate(observed):
            row[i] += answers[item][boot]
    return list(sums.values())

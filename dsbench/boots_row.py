"""The verdict row of items whose boots are not one another's repeat: then the boot is the unit, not the item.

An item's p rests on answers that flip one by one. Where the boots of one arm differ by more than that (a recall test
read 22, 6 and 23 of 24 in three boots of one build), many items say what one boot had, and are no replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from dsbench.comparison import Comparison
from dsbench.decide import decide
from dsbench.records import Observation, Verdict
from dsbench.sample_row import SPREAD_FROM
from dsbench.stats.power import REPEAT_LEVEL, boots_to_fire, smallest_effect, smallest_effect_unblocked
from dsbench.stats.repeats import repeat_p
from dsbench.stats.samples import Interval, blocks_to_fire, interval, sign_flip_p, smallest_p
from dsbench.stats.unblocked import PERMUTATION, compare_unblocked, pooled_sd

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
    plan, margin = this.plan, this.metric.margin
    of_a, of_b = ({blocks[n]: score for n, score in arm.items() if blocks[n] is not None} for arm in (a, b))
    common = [block for block in of_a if block in of_b]
    power: dict[str, Any] = {}
    if common:
        steps = [of_b[block] - of_a[block] for block in common]
        n, effect, span = len(steps), fmean(steps), interval(steps, plan.equivalence_confidence)
        base, test = fmean(of_a[block] for block in common), "sign-flip over blocks"
        p, least = sign_flip_p(steps), smallest_p(n)
        need, now = f"{blocks_to_fire(plan.alpha)}", f"{n} blocks"
        if n >= SPREAD_FROM and (sd := stdev(steps)):
            seen = smallest_effect(sd, n, plan.alpha, margin)
            power = {"smallest_effect": seen, **this.needs_of_blocks(sd, margin, 0.0, abs(effect))}
    else:
        tests = compare_unblocked([*a.values()], [*b.values()], plan.equivalence_confidence, PERMUTATION)
        n, effect, span, base = 0, tests.difference, tests.interval, fmean(a.values())
        test, p, least = tests.test, tests.p, tests.smallest_p
        need, now = f"{boots_to_fire(plan.alpha)} boots an arm", f"{len(a)}+{len(b)} boots"
        between = pooled_sd([*a.values()], [*b.values()])
        if between and min(len(a), len(b)) >= SPREAD_FROM:
            seen = smallest_effect_unblocked(between, len(a), len(b), plan.alpha, margin)
            power = {"smallest_effect": seen, **this.needs_of_boots(between, margin, 0.0, abs(effect))}
    fires, bounded = least <= plan.alpha, math.isfinite(span.low)
    word = decide(
        effect,
        margin=margin,
        better=this.metric.better,
        p=p if fires else None,
        interval=Interval(span.low, span.high, span.attained) if bounded else None,
        alpha=plan.alpha,
    )
    fields = {
        "word": word,
        "baseline": base,
        "candidate": base + effect,
        "delta": effect,
        "blocks": n,
        "test": f"{test}, mean score of a boot",
        "p": p if fires else None,
        "smallest_p": least,
        "interval": (span.low, span.high) if bounded else None,
        "confidence": span.attained if bounded else None,
        **(power if word != "equivalent" else {}),
    }
    cannot = f"at {now} the test cannot go below p={least:.4g}; improved or regressed needs {need}"
    return fields, [] if fires else [cannot]


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

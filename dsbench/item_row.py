"""The verdict row of items that both arms answered: paired by name, equality or exact McNemar."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import ceil, isfinite, sqrt
from typing import Any

from scipy.stats import norm

from dsbench.boots_row import compare_boots
from dsbench.comparison import Comparison
from dsbench.decide import Better, decide, direction
from dsbench.errors import InputError
from dsbench.records import Observation, Value, Verdict, Word
from dsbench.stats.items import MCNEMAR, Paired, compare_items
from dsbench.stats.power import POWER, REPEAT_LEVEL, items_equivalent, smallest_effect, smallest_share

BOOT_LUCK = "one boot in an arm: luck that all items of a boot share is not seen"


def compare_by_item(
    this: Comparison,
    baseline: Mapping[int, list[Observation]],
    candidate: Mapping[int, list[Observation]],
    blocks: Mapping[int, int | None],
) -> Verdict:
    """Items paired by name. With margin 0 any lost item is a regression; otherwise exact McNemar decides, and where
    the boots of an arm are not one another's repeat, a test over boots (see boots_row)."""
    a, b = _by_item(baseline), _by_item(candidate)
    items = sorted(a.keys() & b.keys())
    if not items:
        return this.row("not-run", notes=["no item has an answer in both arms"])
    tokens = any(isinstance(value, list | str) for item in items for value in (*a[item], *b[item]))
    unstable_a = [item for item in items if not _repeats(a[item])]
    unstable_b = [item for item in items if not _repeats(b[item])]
    counts = {
        "n_baseline": len(items),
        "n_candidate": len(items),
        "test": "equality" if this.metric.margin == 0 else "",
    }
    better = this.metric.better
    lost = [item for item in unstable_b if not tokens and _is_loss(_share(b[item]) - _share(a[item]), better)]
    if this.metric.margin == 0 and not unstable_a and unstable_b and not lost:
        notes = [f"not deterministic: its boots differ on {_some(unstable_b)}"]
        return this.row("regressed", **counts, notes=notes)
    if this.metric.margin == 0 and unstable_a:
        # What the baseline does repeat is still owed.
        unsteady = set(unstable_a)
        steady = [item for item in items if item not in unsteady]
        if lost := [item for item in steady if _worse(a[item], b[item], tokens, better)]:
            return this.row("regressed", **counts, notes=[f"lost items that the baseline repeats: {_some(lost)}"])
    if tokens and unstable_a:
        return this.row("inconclusive", **counts, notes=[f"the baseline's own boots differ on {_some(unstable_a)}"])
    if tokens:
        score_a = dict.fromkeys(items, 1.0)
        score_b = {item: float(b[item][0] == a[item][0]) for item in items}
    else:
        _check_shares(this.metric.key, [*a.items(), *b.items()])
        score_a = {item: _share(a[item]) for item in items}
        score_b = {item: _share(b[item]) for item in items}
    paired = compare_items(score_a, score_b, _clusters(baseline), this.plan.equivalence_confidence)
    fields = {
        "baseline": paired.baseline,
        "candidate": paired.candidate,
        "delta": paired.difference,
        "n_baseline": paired.items,
        "n_candidate": paired.items,
    }
    changed = [item for item in items if score_b[item] != score_a[item]]
    lost = [item for item in changed if _is_loss(score_b[item] - score_a[item], better)]
    notes = [f"gained {len(changed) - len(lost)}, lost {len(lost)}: {_some(changed)}"] if changed else []
    notes += [] if tokens else _told(candidate, lost, better)
    if this.metric.margin == 0 and not unstable_a:
        word: Word = "regressed" if lost else "improved" if changed else "equivalent"
        return this.row(word, **fields, test="equality", notes=notes)
    fires = paired.smallest_p <= this.plan.alpha
    by_boot = compare_boots(this, baseline, candidate, blocks, notes)
    if by_boot is not None:
        return by_boot
    word = decide(
        paired.difference,
        margin=this.metric.margin,
        better=this.metric.better,
        p=paired.p if fires else None,
        interval=paired.interval,
        alpha=this.plan.alpha,
    )
    if not fires and paired.gained + paired.lost:
        notes.append(f"with so few items that changed, {paired.test} cannot go below p={paired.smallest_p:.2g}")
    if unstable_a:
        notes.append(f"the baseline's own boots differ on {_some(unstable_a)}: tested, not compared for equality")
    if min(len(baseline), len(candidate)) == 1:
        notes.append(BOOT_LUCK)
    bounded = math.isfinite(paired.interval.low)
    return this.row(
        word,
        **fields,
        test=paired.test,
        p=paired.p if fires else None,
        smallest_p=paired.smallest_p,
        interval=(paired.interval.low, paired.interval.high) if bounded else None,
        interval_of="difference",
        confidence=paired.interval.attained if bounded else None,
        notes=notes,
        **(_power(this, paired, max(len(baseline), len(candidate))) if word != "equivalent" else {}),
    )


def _power(this: Comparison, paired: Paired, boots: int) -> dict[str, Any]:
    """Smallest change of the share that these items show, and the items needed, at the share that flipped here."""
    margin, alpha = this.metric.margin, this.level
    if paired.test != MCNEMAR:
        if not paired.spread:
            return {}
        # Boots that repeat are now and then taken for ones that do not, which costs power.
        power = POWER / (1 - REPEAT_LEVEL) if boots > 1 else POWER
        needs = this.needs_of_blocks(paired.spread, margin, 0.0, abs(paired.difference))
        if margin:
            # The interval is at least that of as many items as there are clusters.
            least = items_equivalent(margin, paired.flipped, this.plan.equivalence_confidence)
            found = needs["blocks_needed"]
            needs["blocks_needed"] = max(found, least) if found and least else None
        return {
            "smallest_effect": smallest_effect(paired.spread, paired.clusters, alpha, margin, power),
            **needs,
            "needed_unit": "clusters" if paired.clusters < paired.items else "items",
        }
    flips, target = max(paired.gained + paired.lost, 1) / paired.items, abs(paired.difference)
    if margin:
        return {
            "smallest_effect": smallest_share(paired.items, flips, alpha, margin=margin),
            "blocks_needed": items_equivalent(margin, flips, this.plan.equivalence_confidence),
            "needed_for": "equivalence",
            "needed_effect": margin,
            "needed_unit": "items",
        }
    z, spare = float(norm.isf(alpha / 2)), float(norm.isf(1 - POWER))
    needed = ((z * sqrt(flips) + spare * sqrt(max(flips - target**2, 0.0))) / target) ** 2 if target else None
    return {
        "smallest_effect": smallest_share(paired.items, flips, alpha),
        "blocks_needed": ceil(needed) if needed is not None and isfinite(needed) else None,
        "needed_effect": target or None,
        "needed_unit": "items",
    }


def _is_loss(change: float, better: Better) -> bool:
    """Whether an item's score got worse, as its metric counts: replies that are cut off are lost where more are."""
    return bool(change) and direction(change, better) == "regressed"


def _worse(baseline: Sequence[Value], candidate: Sequence[Value], tokens: bool, better: Better) -> bool:
    """Whether an item that the baseline repeats is lost: other tokens, or a worse score."""
    if tokens:
        return any(value != baseline[0] for value in candidate)
    return _is_loss(_share(candidate) - _share(baseline), better)


def _repeats(values: Sequence[Value]) -> bool:
    """Whether all boots read the same."""
    return values.count(values[0]) == len(values)


def _share(values: Sequence[Value]) -> float:
    """Share of boots in which an item was right."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    return math.fsum(numbers) / len(numbers)


def _check_shares(metric: str, read: Sequence[tuple[str, Sequence[Value]]]) -> None:
    for item, values in read:
        for value in values:
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InputError(f"records: {metric} of {item!r} reads {value!r} where a share from 0 to 1 is due")


def _by_item(observed: Mapping[int, list[Observation]]) -> dict[str, list[Value]]:
    """Values of every item over the boots, in order of time."""
    found: dict[str, list[Value]] = {}
    for seen in observed.values():
        for o in seen:
            if o.value is not None:
                found.setdefault(o.item or "", []).append(o.value)
    return found


def _told(observed: Mapping[int, list[Observation]], items: Sequence[str], better: Better) -> list[str]:
    """What the engine gave for the first of some lost items, in a boot that lost it."""
    worst = 1 if better == "down" else 0
    wrong = (o for seen in observed.values() for o in seen if o.item in items[:1] and o.value == worst and o.text)
    return [f"{o.item} in boot {o.boot}: {' '.join(o.text.split())[:120]}" for o in wrong if o.text][:1]


def _clusters(observed: Mapping[int, list[Observation]]) -> dict[str, str]:
    return {o.item or "": o.cluster for seen in observed.values() for o in seen if o.cluster is not None}


def _some(items: Sequence[str]) -> str:
    shown = ", ".join(items[:3])
    return shown if len(items) <= 3 else f"{shown} and {len(items) - 3} more"

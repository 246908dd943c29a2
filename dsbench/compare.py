"""One metric of one candidate arm against the baseline: from boots to one verdict row, by kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from dsbench.errors import InputError
from dsbench.evidence import BootEvidence
from dsbench.metrics import Metric
from dsbench.ratios import compare_ratios
from dsbench.records import Arm, Observation, Plan, Value, Verdict, Word
from dsbench.stats.exact import compare_exact
from dsbench.stats.items import compare_items
from dsbench.stats.power import blocks_needed, smallest_effect
from dsbench.stats.samples import blocks_to_fire, interval, sign_flip_p, smallest_p

Numbers = Sequence[float]

LEAST_BOOTS = 2
"""Boots an arm from which exact and item metrics can be judged: one boot cannot show that it repeats."""
ONE_BOOT = "one boot an arm: nothing shows that it repeats; exact and item metrics need 2"

SPREAD_FROM = 4
"""Blocks from which their spread is worth extrapolating from; of two or three it is luck."""


@dataclass(frozen=True)
class Comparison:
    """What a row is about; every kind starts from this."""

    plan: Plan
    arm: Arm
    metric: Metric
    rank: int | None
    role: str

    def row(self, word: Word, **fields: Any) -> Verdict:
        return Verdict.model_validate(
            {
                "arm": self.arm.name,
                "metric": self.metric.key,
                "unit": self.metric.unit,
                "better": self.metric.better,
                "rank": self.rank,
                "role": self.role,
                "kind": self.metric.kind,
                "margin": self.metric.margin,
                "margin_absolute": self.metric.absolute,
                "expected": self.arm.expected.get(self.metric.key),
                "word": word,
                **fields,
            }
        )

    def direction(self, change: float) -> Word:
        if self.metric.better == "same":
            return "regressed"
        return "improved" if (change > 0) == (self.metric.better == "up") else "regressed"


def compare(
    plan: Plan, boots: Sequence[BootEvidence], arm: Arm, metric: Metric, rank: int | None, role: str
) -> Verdict:
    """Judge one metric of one arm by the rules of its kind. `boots` are the measured boots that ended well."""
    this = Comparison(plan, arm, metric, rank, role)
    baseline = _observed(boots, plan.baseline.name, metric.key, rank)
    candidate = _observed(boots, arm.name, metric.key, rank)
    if not baseline or not candidate:
        return this.row("not-run", notes=["no reading in both arms"])
    blocks = {boot.number: boot.planned.block for boot in boots}
    if metric.kind == "counter-ratio":
        return compare_ratios(this, baseline, candidate, blocks)
    if any(o.value is None for seen in (*baseline.values(), *candidate.values()) for o in seen):
        return this.row("inconclusive", notes=["unknown on this platform"])
    few = min(len(baseline), len(candidate)) < LEAST_BOOTS
    if metric.kind == "item":
        items = _items(this, baseline, candidate)
        return _undecided(items) if few else items
    numbers = {number: float(_one(seen)) for number, seen in {**baseline, **candidate}.items()}
    if metric.kind == "exact":
        exact = _exact(this, [numbers[b] for b in baseline], [numbers[b] for b in candidate])
        if exact:
            return _undecided(exact) if few else exact
        note = ["varies between the baseline's own boots: judged as a sample"]
        return _sample(this, _by_block(numbers, baseline, blocks), _by_block(numbers, candidate, blocks), note)
    return _sample(this, _by_block(numbers, baseline, blocks), _by_block(numbers, candidate, blocks), [])


def _undecided(row: Verdict) -> Verdict:
    """A row from one boot an arm: a loss stands, and so does a drift control that moved; nothing good is granted."""
    if row.role != "drift control" and row.word in ("improved", "equivalent"):
        return row.model_copy(update={"word": "inconclusive", "notes": [*row.notes, ONE_BOOT]})
    return row


# --- exact ----------------------------------------------------------------------------------------------------------


def _exact(this: Comparison, baseline: Numbers, candidate: Numbers) -> Verdict | None:
    """The row of an exact metric; None if the baseline varies, so that it has to be judged as a sample."""
    outcome = compare_exact(baseline, candidate)
    if outcome == "baseline-varies":
        return None
    counts = {"n_baseline": len(baseline), "n_candidate": len(candidate), "baseline": baseline[0]}
    notes: list[str] = []
    if outcome == "candidate-varies":
        seen = ", ".join(f"{value:,.10g}" for value in sorted(set(candidate)))
        return this.row("regressed", **counts, notes=[f"not deterministic: its boots read {seen}"])
    delta = candidate[0] - baseline[0]
    relative = delta / baseline[0] if baseline[0] else None
    expected = this.arm.expected.get(this.metric.key)
    if expected is not None and expected != delta:
        notes.append(f"expected {expected:+,} {this.metric.unit}, measured {delta:+,.10g} {this.metric.unit}")
    beyond = delta != 0 and (relative is None or abs(relative) > this.metric.margin)
    word = this.direction(delta) if beyond else "equivalent"
    return this.row(word, **counts, candidate=candidate[0], delta=delta, relative=relative, notes=notes)


# --- sample ---------------------------------------------------------------------------------------------------------


def _sample(
    this: Comparison, baseline: Mapping[int, float], candidate: Mapping[int, float], notes: list[str]
) -> Verdict:
    """Sign-flip test and interval over the blocks that have both arms."""
    plan, metric = this.plan, this.metric
    blocks = sorted(baseline.keys() & candidate.keys())
    if not blocks:
        return this.row("not-run", notes=[*notes, "no block has a reading in both arms"])
    a, b = [baseline[block] for block in blocks], [candidate[block] for block in blocks]
    ratios = min(*a, *b) > 0
    steps = [math.log(y / x) if ratios else y - x for x, y in zip(a, b, strict=True)]
    centre, base = fmean(steps), math.exp(fmean(map(math.log, a))) if ratios else fmean(a)
    effect = math.expm1(centre) if ratios else centre
    # The margin is a fraction of the baseline; where ratios make no sense it is one of the baseline's size.
    margin = metric.margin if ratios else metric.margin * abs(base)
    span = interval(steps, plan.equivalence_confidence)
    bounded = math.isfinite(span.low)
    ends = ((math.expm1(span.low), math.expm1(span.high)) if ratios else (span.low, span.high)) if bounded else None
    least = smallest_p(len(blocks))
    p = sign_flip_p(steps) if least <= plan.alpha else None
    if p is not None and p <= plan.alpha and abs(effect) > margin:
        word = this.direction(effect)
    elif ends and -margin < ends[0] and ends[1] < margin:
        word = "equivalent"
    else:
        word = "inconclusive"
    if p is None:
        need = blocks_to_fire(plan.alpha)
        notes = [
            *notes,
            f"at {len(blocks)} blocks the test cannot go below p={least:.4g}; improved or regressed needs {need}",
        ]
    sd = stdev(steps) if len(steps) >= SPREAD_FROM else None
    return this.row(
        word,
        kind="sample",
        test="sign-flip over blocks, log ratio" if ratios else "sign-flip over blocks, difference",
        baseline=base,
        candidate=base * math.exp(centre) if ratios else base + centre,
        delta=base * effect if ratios else effect,
        relative=effect if ratios else (effect / base if base else None),
        n_baseline=len(baseline),
        n_candidate=len(candidate),
        blocks=len(blocks),
        p=p,
        smallest_p=least,
        interval=ends,
        interval_of="relative" if ratios else "difference",
        confidence=span.attained if bounded else None,
        smallest_effect=smallest_effect(sd, len(blocks), plan.alpha) if sd is not None else None,
        blocks_needed=blocks_needed(math.log1p(margin) if ratios else margin, sd, plan.alpha)
        if sd is not None
        else None,
        notes=notes,
    )


# --- item -----------------------------------------------------------------------------------------------------------


def _items(
    this: Comparison, baseline: Mapping[int, list[Observation]], candidate: Mapping[int, list[Observation]]
) -> Verdict:
    """Items paired by name. With margin 0 any lost item is a regression; otherwise exact McNemar decides."""
    a, b = _by_item(baseline), _by_item(candidate)
    items = sorted(a.keys() & b.keys())
    if not items:
        return this.row("not-run", notes=["no item has an answer in both arms"])
    tokens = any(isinstance(value, list | str) for item in items for value in (*a[item], *b[item]))
    unstable_a = [item for item in items if any(value != a[item][0] for value in a[item])]
    unstable_b = [item for item in items if any(value != b[item][0] for value in b[item])]
    counts = {
        "n_baseline": len(items),
        "n_candidate": len(items),
        "test": "equality" if this.metric.margin == 0 else "",
    }
    lost = [item for item in unstable_b if not tokens and _share(b[item]) < _share(a[item])]
    if this.metric.margin == 0 and not unstable_a and unstable_b and not lost:
        notes = [f"not deterministic: its boots differ on {_some(unstable_b)}"]
        return this.row("regressed", **counts, notes=notes)
    if this.metric.margin == 0 and unstable_a:
        # What the baseline does repeat is still owed.
        steady = [item for item in items if item not in unstable_a]
        if lost := [item for item in steady if _worse(a[item], b[item], tokens)]:
            return this.row("regressed", **counts, notes=[f"lost items that the baseline repeats: {_some(lost)}"])
    if tokens and unstable_a:
        return this.row("inconclusive", **counts, notes=[f"the baseline's own boots differ on {_some(unstable_a)}"])
    if tokens:
        score_a = dict.fromkeys(items, 1.0)
        score_b = {item: float(b[item][0] == a[item][0]) for item in items}
    else:
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
    notes = [f"gained {paired.gained}, lost {paired.lost}: {_some(changed)}"] if changed else []
    notes += [] if tokens else _told(candidate, [item for item in changed if score_b[item] < score_a[item]])
    if this.metric.margin == 0 and not unstable_a:
        word: Word = "regressed" if paired.lost else "improved" if paired.gained else "equivalent"
        return this.row(word, **fields, test="equality", notes=notes)
    margin = this.metric.margin
    fires = paired.smallest_p <= this.plan.alpha
    if fires and paired.p <= this.plan.alpha and abs(paired.difference) > margin:
        word = this.direction(paired.difference)
    elif paired.interval.inside(margin):
        word = "equivalent"
    else:
        word = "inconclusive"
    if unstable_a:
        notes.append(f"the baseline's own boots differ on {_some(unstable_a)}: tested, not compared for equality")
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
    )


# --- readings -------------------------------------------------------------------------------------------------------


def _observed(boots: Sequence[BootEvidence], arm: str, key: str, rank: int | None) -> dict[int, list[Observation]]:
    """Readings of a metric by boot number."""
    found: dict[int, list[Observation]] = {}
    for boot in boots:
        if boot.planned.arm == arm:
            seen = [o for o in boot.observations if o.metric == key and o.rank == rank]
            if seen:
                found[boot.number] = seen
    return found


def _one(seen: list[Observation]) -> int | float:
    """The single number of a boot. InputError if there are more, or if it is no number."""
    value = seen[0].value
    if len(seen) != 1 or not isinstance(value, int | float):
        what = f"{len(seen)} readings" if len(seen) != 1 else f"the reading {value!r}"
        raise InputError(f"records: boot {seen[0].boot} has {what} of {seen[0].metric} where one number is due")
    return value


def _worse(baseline: Sequence[Value], candidate: Sequence[Value], tokens: bool) -> bool:
    """Whether an item that the baseline repeats is lost: other tokens, or fewer right answers."""
    if tokens:
        return any(value != baseline[0] for value in candidate)
    return _share(candidate) < _share(baseline)


def _share(values: Sequence[Value]) -> float:
    """Share of boots in which an item was right."""
    return fmean(value for value in values if isinstance(value, int | float))


def _by_block(
    numbers: Mapping[int, float], boots: Mapping[int, object], blocks: Mapping[int, int | None]
) -> dict[int, float]:
    return {block: numbers[number] for number in boots if (block := blocks[number]) is not None}


def _by_item(observed: Mapping[int, list[Observation]]) -> dict[str, list[Value]]:
    """Values of every item over the boots, in order of time."""
    found: dict[str, list[Value]] = {}
    for seen in observed.values():
        for o in seen:
            if o.value is not None:
                found.setdefault(o.item or "", []).append(o.value)
    return found


def _told(observed: Mapping[int, list[Observation]], items: Sequence[str]) -> list[str]:
    """What the engine gave for the first of some items where it was wrong."""
    wrong = (o for seen in observed.values() for o in seen if o.item in items[:1] and o.value == 0 and o.text)
    return [f"{o.item} in boot {o.boot}: {' '.join(o.text.split())[:120]}" for o in wrong if o.text][:1]


def _clusters(observed: Mapping[int, list[Observation]]) -> dict[str, str]:
    return {o.item or "": o.cluster for seen in observed.values() for o in seen if o.cluster is not None}


def _some(items: Sequence[str]) -> str:
    shown = ", ".join(items[:3])
    return shown if len(items) <= 3 else f"{shown} and {len(items) - 3} more"

"""The verdict row of a sample: one value a boot, compared inside blocks, or between arms where there are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from dsbench.claims import EXACT
from dsbench.comparison import Comparison, Numbers
from dsbench.decide import decide
from dsbench.floors import Floor
from dsbench.records import Verdict
from dsbench.stats.power import boots_to_fire, smallest_effect, smallest_effect_unblocked
from dsbench.stats.samples import Interval, blocks_to_fire, interval, sign_flip_p, smallest_p
from dsbench.stats.unblocked import compare_unblocked, pooled_sd

SPREAD_FROM = 4
"""Blocks, or boots an arm, from which their spread is worth extrapolating from; of two or three it is luck."""

ALONE = "with so few boots no change of it alone stands among the claims of its family (Holm)"


def compare_samples(
    this: Comparison,
    baseline: Mapping[int, float],
    candidate: Mapping[int, float],
    blocks: Mapping[int, int | None],
    notes: list[str],
) -> Verdict:
    """Values by boot. Boots of one block are paired; boots that belong to none are compared as two groups."""
    a, b = _by_block(baseline, blocks), _by_block(candidate, blocks)
    common = sorted(a.keys() & b.keys())
    if common:
        return _blocked(this, [a[block] for block in common], [b[block] for block in common], notes)
    if any(blocks[boot] is None for boot in (*baseline, *candidate)):
        return _unblocked(this, list(baseline.values()), list(candidate.values()), notes)
    return this.row("not-run", notes=[*notes, "no block has a reading in both arms"])


@dataclass(frozen=True)
class Tested:
    """What a test over blocks or boots says of two arms, in the terms of the values that it was given."""

    effect: float
    span: Interval
    test: str
    p: float | None
    """None where the test could not have fired; `notes` tell so."""
    least: float
    notes: list[str]
    power: dict[str, Any]
    """Fields of a row; empty where no spread is known."""
    blocks: int = 0
    parted: str = ""

    def fields(self, this: Comparison, margin: float, outward: Callable[[float], float] = float) -> dict[str, Any]:
        """Word, p and interval as fields of a row; `outward` takes a difference to the terms of the margin."""
        ends = (outward(self.span.low), outward(self.span.high)) if math.isfinite(self.span.low) else None
        word = decide(
            outward(self.effect),
            margin=margin,
            better=this.metric.better,
            p=self.p,
            interval=Interval(*ends, self.span.attained) if ends else None,
            alpha=this.plan.alpha,
            parted=self.parted,
        )
        return {
            "word": word,
            "blocks": self.blocks,
            "p": self.p,
            "smallest_p": self.least,
            "interval": ends,
            "confidence": self.span.attained if ends else None,
        }


def over_blocks(
    this: Comparison, steps: Numbers, margin: float, claimed: float = 0.0, known: float | None = None
) -> Tested:
    """Sign-flip test of the candidate's value less the baseline's in each block. `known` is the spread of the steps
    where these are too few to tell it."""
    n, least, effect = len(steps), smallest_p(len(steps)), fmean(steps)
    fires, sd = least <= this.plan.alpha, stdev(steps) if n >= SPREAD_FROM else known
    cannot = f"at {n} blocks the test cannot go below p={least:.4g}; improved or regressed needs "
    power: dict[str, Any] = {}
    if sd is not None:
        seen = smallest_effect(sd, n, this.level, margin)
        power = {"smallest_effect": seen, **this.needs_of_blocks(sd, margin, claimed, abs(effect))}
    return Tested(
        effect,
        interval(steps, this.plan.equivalence_confidence),
        "sign-flip over blocks",
        sign_flip_p(steps) if fires else None,
        least,
        [] if fires else [f"{cannot}{blocks_to_fire(this.plan.alpha)}"],
        power,
        blocks=n,
    )


def over_boots(
    this: Comparison, a: Numbers, b: Numbers, margin: float, claimed: float = 0.0, declared: str = ""
) -> Tested:
    """Mann-Whitney, or with ties or where it is `declared` the permutation test, of boots that belong to no block."""
    tests = compare_unblocked(a, b, this.plan.equivalence_confidence, declared)
    p = tests.p_if_it_fires(this.plan.alpha)
    now = f"at {len(a)}+{len(b)} boots"
    cannot = f"{now} the test cannot go below p={tests.smallest_p:.4g}; improved or regressed needs "
    sd = pooled_sd(a, b) if min(len(a), len(b)) >= SPREAD_FROM else None
    power: dict[str, Any] = {}
    if sd is not None:
        seen = smallest_effect_unblocked(sd, len(a), len(b), this.level, margin)
        power = {"smallest_effect": seen, **this.needs_of_boots(sd, margin, claimed, abs(tests.difference))}
    parted = tests.parted(this.plan.alpha)
    notes = [] if p is not None else [f"{cannot}{boots_to_fire(this.plan.alpha)} an arm"]
    return Tested(
        tests.difference,
        tests.interval,
        tests.test,
        p,
        tests.smallest_p,
        [*notes, *([parted] if parted else [])],
        power,
        parted=parted,
    )


def _blocked(this: Comparison, a: Numbers, b: Numbers, notes: list[str]) -> Verdict:
    """Over the blocks that have both arms."""
    scale = _Scale(this, a, b)
    steps = [y - x for x, y in zip(scale.a, scale.b, strict=True)]
    floor = _floor(this, scale.logs)
    told = over_blocks(this, steps, scale.margin, scale.claimed(this), floor.paired if floor else None)
    notes = [*notes, *told.notes]
    if floor is not None and len(steps) < SPREAD_FROM:
        notes.append("spread of the blocks from the stored floor")
    row = scale.row(this, told, notes)
    if floor is not None and row.word in ("improved", "regressed") and abs(told.effect) <= floor.noise(told.blocks):
        why = f"{row.word} by its blocks alone, and no claim: A/A experiments of {told.blocks} blocks move as far"
        row = row.model_copy(update={"word": "inconclusive", "notes": [*row.notes, f"{why} (the floor)"]})
    return row


def _unblocked(this: Comparison, a: Numbers, b: Numbers, notes: list[str]) -> Verdict:
    """Over boots that belong to no block."""
    scale = _Scale(this, a, b)
    told = over_boots(this, scale.a, scale.b, scale.margin, scale.claimed(this))
    return scale.row(this, told, [*notes, *told.notes])


class _Scale:
    """Logarithms where all values are positive, so that differences are ratios; else the values themselves."""

    def __init__(self, this: Comparison, a: Numbers, b: Numbers) -> None:
        self.n = (len(a), len(b))
        self.logs = min(*a, *b) > 0
        self.a = [math.log(x) for x in a] if self.logs else list(a)
        self.b = [math.log(x) for x in b] if self.logs else list(b)
        self.base = math.exp(fmean(self.a)) if self.logs else fmean(a)
        # The margin is a fraction of the baseline; where ratios make no sense it is one of the baseline's size.
        self.margin_outward = this.margin(self.base) if self.logs else this.margin_in_unit(self.base)
        self.margin = math.log1p(self.margin_outward) if self.logs else self.margin_outward

    def outward(self, step: float) -> float:
        """A difference on this scale as a fraction of the baseline, or in the unit."""
        return math.expm1(step) if self.logs else step

    def claimed(self, this: Comparison) -> float:
        """The change that is claimed, on this scale; 0 without one."""
        claimed = this.claimed(self.base) or 0.0
        return math.log1p(claimed) if self.logs else claimed * abs(self.base)

    def row(self, this: Comparison, told: Tested, notes: list[str]) -> Verdict:
        """The row, with its effects as fractions of the baseline, or in the unit."""
        effect, fields = self.outward(told.effect), told.fields(this, self.margin_outward, self.outward)
        effects = {key: told.power.get(key) for key in ("smallest_effect", "needed_effect")}
        power = told.power | {key: self.outward(step) for key, step in effects.items() if step is not None}
        if fields["word"] == "inconclusive" and not power:
            notes = [*notes, "no spread to tell the boots needed from: run 4 blocks, or store a floor (dsbench aa)"]
        if fields["word"] == "inconclusive" and told.p is not None and told.least > this.level + EXACT:
            notes = [*notes, ALONE]
        return this.row(
            **fields,
            **power,
            kind="sample",
            test=f"{told.test}, {'log ratio' if self.logs else 'difference'}",
            baseline=self.base,
            candidate=self.base * math.exp(told.effect) if self.logs else self.base + told.effect,
            delta=self.base * effect if self.logs else effect,
            relative=effect if self.logs else (effect / self.base if self.base else None),
            n_baseline=self.n[0],
            n_candidate=self.n[1],
            interval_of="relative" if self.logs else "difference",
            notes=notes,
        )


def _floor(this: Comparison, logs: bool) -> Floor | None:
    """The A/A spread of the differences inside blocks on this machine that the plan holds."""
    for floor in this.plan.floors:
        if (floor.metric, floor.relative) == (this.metric.key, logs) and floor.rank in (this.rank, None):
            return floor
    return None


def _by_block(values: Mapping[int, float], blocks: Mapping[int, int | None]) -> dict[int, float]:
    return {block: value for boot, value in values.items() if (block := blocks[boot]) is not None}
